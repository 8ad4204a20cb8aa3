"""Records that are written late: what was said to be stored stays stored."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put, source
from tests.backends.threefs.medium import ThreeFsMedium
from tests.backends.usrbio.official_double import OfficialDouble
from tests.threefs.stand_in import ThreeFs


def wait_for(holds: Callable[[], bool], timeout_s: float = 10) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.005)


def test_a_late_write_of_records_takes_none_back_that_came_after_it(
    fs: ThreeFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A put waits for its turn at an index file while the write before it is given up."""
    monkeypatch.setattr("hicache_backends.segment.store._REMOVE_MS", 400)
    medium = ThreeFsMedium(fs, io_engine="usrbio", ring_client="own")
    storage = medium.open(NAMESPACE, capacity_pages=8)
    pages, new = digests_of(*range(4)), digests_of("new")
    assert all(put(storage, pages))
    state = storage._state
    fs.set(late_share=1, late_ms=1200, only=2)
    remover = threading.Thread(target=storage.remove, args=(pages[:1],))
    remover.start()
    image = state.filing._images.of(next(iter(state.table)))  # type: ignore[attr-defined] # of 3FS
    wait_for(image.lock.locked)
    outcomes: list[bool] = []
    putter = threading.Thread(target=lambda: outcomes.extend(o.ok for o in put(storage, new)))
    putter.start()
    wait_for(lambda: len(state.volumes[0].free) == 3)
    fs.set(late_share=0)
    remover.join()
    putter.join()
    wait_for(lambda: storage.stats()["ring_quarantined"] == 0)
    assert storage.close()
    again = medium.open(NAMESPACE, capacity_pages=8)
    assert again.contains(new) == outcomes
    assert get(again, pages[1:]) == [True] * 3
    assert all(put(again, new))
    assert again.close()


def test_slots_in_doubt_by_the_official_client_are_used_again_once_it_has_answered(
    fs: ThreeFs, double: OfficialDouble
) -> None:
    """Every slot is in doubt: no call has a reason to use the rings and to find the answers."""
    medium = ThreeFsMedium(fs, io_engine="usrbio", ring_client="official")
    storage = medium.open(NAMESPACE, capacity_pages=8)
    pages = digests_of(*range(8))
    assert all(put(storage, pages))
    assert all(storage.remove(pages))
    double.go.clear()
    outcomes = storage.put(pages, source(pages), [UNKNOWN] * 8, Deadline.after_ms(100))
    assert not any(outcomes)
    assert not any(put(storage, pages[:1])), "a slot is used again that a write may still reach"
    double.go.set()
    wait_for(lambda: all(put(storage, pages)))
    assert get(storage, pages) == [True] * 8
    assert storage.close()
