"""Rate caps hold, and stores step aside for loads without starving."""

from __future__ import annotations

import threading
import time

import pytest

from hicache_backends.deadline import Deadline
from hicache_storage import throttle
from hicache_storage.throttle import LoadsFirst, RateCap


def test_no_cap_never_waits() -> None:
    cap = RateCap(None)
    began = time.monotonic()
    assert all(cap.take(1 << 40, Deadline.after_ms(1)) for _ in range(100))
    assert time.monotonic() - began < 2


def test_a_cap_holds_over_a_longer_run() -> None:
    cap = RateCap(10_000_000)
    began = time.monotonic()
    for _ in range(8):
        assert cap.take(500_000, Deadline.after_ms(5000))
    elapsed = time.monotonic() - began
    assert 0.2 <= elapsed < 2, "8 x 0.5 MB at 10 MB/s, less the last and a burst of 0.1 s"


def test_a_wait_past_the_deadline_is_refused_at_once() -> None:
    cap = RateCap(1000)
    assert cap.take(100_000, Deadline.after_ms(100))
    began = time.monotonic()
    assert not cap.take(1, Deadline.after_ms(20_000))
    assert time.monotonic() - began < 5


def test_a_store_waits_for_a_load_and_goes_on_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(throttle, "_MAX_YIELD_S", 30)
    turns = LoadsFirst()
    order = []
    loading = threading.Event()

    def load() -> None:
        with turns.load():
            loading.set()
            while not turns._waiting:
                time.sleep(0.001)
            order.append("load")

    thread = threading.Thread(target=load)
    thread.start()
    loading.wait()
    turns.before_store(Deadline.after_ms(60_000))
    order.append("store")
    thread.join()
    assert order == ["load", "store"]


def test_a_store_does_not_starve_behind_endless_loads() -> None:
    turns = LoadsFirst()
    with turns.load():
        began = time.monotonic()
        turns.before_store(Deadline.after_ms(60_000))
        assert 0.04 < time.monotonic() - began < 5
