"""Prefetch: bounded depth, contiguous progress, priorities, cancellation, no leaks."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageClosed, StorageHung, StorageUnavailable
from hicache_backends.outcomes import HIT, NEVER_WRITTEN, Outcome, Reason
from hicache_backends.pages import Pages
from hicache_storage.depth import Depth
from hicache_storage.prefetch import Prefetcher

PAGE = 64


def batch(n: int, first: int = 0) -> tuple[list[bytes], Pages]:
    digests = [(first + i).to_bytes(16, "big") for i in range(n)]
    return digests, Pages.from_buffers([bytearray(PAGE) for _ in range(n)], writable=True)


def soon() -> Deadline:
    return Deadline.after_ms(5000)


class Gate:
    """A load that waits until it is let through, and remembers what ran."""

    def __init__(self) -> None:
        self.open = threading.Event()
        self.begun: list[int] = []
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def __call__(self, digests: Sequence[bytes], pages: Pages, _: Deadline) -> list[Outcome]:
        with self._lock:
            self.begun.append(int.from_bytes(digests[0], "big"))
            self._now += 1
            self.most = max(self.most, self._now)
        assert self.open.wait(5)
        with self._lock:
            self._now -= 1
        return [HIT] * len(digests)


def until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < limit, "waited 5 s in vain"
        time.sleep(0.001)


@contextmanager
def prefetcher(
    load: Callable[[Sequence[bytes], Pages, Deadline], list[Outcome]],
    depth: int = 2,
    chunk: int = 4,
    queue: int = 1 << 20,
    on_end: Callable[..., None] = lambda *counts: None,
) -> Iterator[Prefetcher]:
    made = Prefetcher(load, Depth(depth), chunk, queue, on_end)
    try:
        yield made
    finally:
        made.close()


def test_exactly_depth_chunks_are_in_flight() -> None:
    gate = Gate()
    with prefetcher(gate, depth=3) as pf:
        handle = pf.submit(*batch(40), soon(), "prefetch")
        until(lambda: len(gate.begun) == 3)
        time.sleep(0.02)
        assert len(gate.begun) == 3
        gate.open.set()
        outcomes = handle.wait(5000)
        assert outcomes is not None
        assert all(outcomes)
        assert gate.most == 3
        assert handle.progress == 40


def test_progress_is_the_contiguous_prefix_and_never_runs_ahead() -> None:
    late = threading.Event()

    def load(digests: Sequence[bytes], pages: Pages, _: Deadline) -> list[Outcome]:
        if digests[0] == (0).to_bytes(16, "big"):
            assert late.wait(5)
        return [HIT] * len(digests)

    with prefetcher(load) as pf:
        handle = pf.submit(*batch(8), soon(), "prefetch")
        until(lambda: handle._outcomes[4] is not None)
        assert handle.progress == 0
        late.set()
        handle.wait(5000)
        assert handle.progress == 8


def test_it_stops_at_the_first_miss_and_says_so() -> None:
    def load(digests: Sequence[bytes], pages: Pages, _: Deadline) -> list[Outcome]:
        found = int.from_bytes(digests[0], "big") == 0
        return [HIT, NEVER_WRITTEN, HIT, HIT] if found else [HIT] * len(digests)

    with prefetcher(load, depth=1) as pf:
        outcomes = pf.submit(*batch(12), soon(), "prefetch").wait(5000)
    assert outcomes is not None
    assert [bool(o) for o in outcomes] == [True, False, True, True] + [False] * 8
    assert outcomes[1].reason is Reason.NEVER_WRITTEN
    assert {o.reason for o in outcomes[4:]} == {Reason.SKIPPED}


def test_a_running_request_goes_before_queued_prefetches() -> None:
    gate = Gate()
    with prefetcher(gate, depth=1) as pf:
        first = pf.submit(*batch(4, 0), soon(), "prefetch")
        until(lambda: gate.begun == [0])
        later = pf.submit(*batch(4, 100), soon(), "prefetch")
        urgent = pf.submit(*batch(4, 200), soon(), "request")
        gate.open.set()
        for handle in (first, later, urgent):
            handle.wait(5000)
        assert gate.begun == [0, 200, 100]


def test_cancel_begins_no_further_chunk_and_done_waits_for_the_running_one() -> None:
    gate = Gate()
    with prefetcher(gate, depth=1) as pf:
        handle = pf.submit(*batch(12), soon(), "prefetch")
        until(lambda: gate.begun == [0])
        handle.cancel()
        assert handle.wait(20) is None, "a chunk still writes into the buffers"
        gate.open.set()
        outcomes = handle.wait(5000)
        assert outcomes is not None
        assert handle.done
        assert [bool(o) for o in outcomes] == [True] * 4 + [False] * 8
        assert gate.begun == [0]


def test_a_full_queue_refuses_loudly_and_takes_again_when_drained() -> None:
    gate = Gate()
    with prefetcher(gate, depth=1, queue=8 * PAGE) as pf:
        first = pf.submit(*batch(8), soon(), "prefetch")
        refused = pf.submit(*batch(4, 50), soon(), "prefetch").wait(1000)
        assert refused is not None
        assert {(o.reason, o.detail) for o in refused} == {(Reason.SKIPPED, "prefetch queue full")}
        gate.open.set()
        first.wait(5000)
        until(lambda: pf.queued_bytes == 0)
        again = pf.submit(*batch(4, 50), soon(), "prefetch").wait(5000)
        assert again is not None
        assert all(again)


@pytest.mark.parametrize("error", [StorageHung("stuck"), ValueError("odd"), UnicodeError("worse")])
def test_a_worker_outlives_whatever_a_backend_raises(error: Exception) -> None:
    broken = True

    def load(digests: Sequence[bytes], pages: Pages, _: Deadline) -> list[Outcome]:
        if broken:
            raise error
        return [HIT] * len(digests)

    with prefetcher(load, depth=1) as pf:
        outcomes = pf.submit(*batch(4), soon(), "prefetch").wait(5000)
        assert outcomes is not None
        assert {o.reason for o in outcomes} == {Reason.IO_ERROR}
        assert str(error) in outcomes[0].detail
        broken = False
        again = pf.submit(*batch(4), soon(), "prefetch").wait(5000)
        assert again is not None
        assert all(again)


def test_random_aborts_leak_neither_bytes_nor_workers() -> None:
    dice = random.Random(7)  # noqa: S311 - a test's dice

    def load(digests: Sequence[bytes], pages: Pages, _: Deadline) -> list[Outcome]:
        if dice.random() < 0.1:
            raise OSError("dice")
        return [HIT if dice.random() < 0.9 else NEVER_WRITTEN for _ in digests]

    with prefetcher(load, depth=4) as pf:
        for i in range(1000):
            handle = pf.submit(*batch(8, i), soon(), "prefetch")
            if dice.random() < 0.5:
                handle.cancel()
        until(lambda: pf.queued_bytes == 0)
        last = pf.submit(*batch(1), soon(), "request").wait(5000)
        assert last is not None
        assert len(pf._threads) == 4


def test_close_cancels_what_is_queued_and_refuses_more() -> None:
    gate = Gate()
    with prefetcher(gate, depth=1) as pf:
        running = pf.submit(*batch(8), soon(), "prefetch")
        queued = pf.submit(*batch(8, 50), soon(), "prefetch")
        until(lambda: gate.begun == [0])
        pf.close()
        assert queued.done
        gate.open.set()
        outcomes = running.wait(5000)
        assert outcomes is not None
        assert [bool(o) for o in outcomes] == [True] * 4 + [False] * 4
        with pytest.raises(StorageClosed):
            pf.submit(*batch(1), soon(), "prefetch")


def test_auto_depth_climbs_while_it_pays_and_stays_in_bounds() -> None:
    depth = Depth("auto")
    seen = {depth.now}

    def rate(at: int) -> float:
        return min(at, 6) * 1e6  # more than 6 chunks gain nothing

    for _ in range(60):
        depth._since = time.monotonic() - 1.0
        depth._bytes = int(rate(depth.now))
        depth._chunks = 10_000
        with depth.measured():
            pass
        seen.add(depth.now)
    assert min(seen) >= 1
    assert max(seen) <= depth.most
    assert abs(depth.now - 6) <= 2


def test_a_process_without_threads_left_refuses_before_anything_is_queued(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with prefetcher(lambda digests, pages, deadline: [HIT] * len(digests)) as pf:
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", refuse)
            with pytest.raises(StorageUnavailable, match="no thread"):
                pf.submit(*batch(4), soon(), "prefetch")
        assert pf.queued_bytes == 0
        outcomes = pf.submit(*batch(4), soon(), "prefetch").wait(5000)
        assert outcomes is not None
        assert all(outcomes)


def test_a_forked_child_is_told_that_its_threads_are_not_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with prefetcher(lambda digests, pages, deadline: [HIT] * len(digests)) as pf:
        pf.submit(*batch(1), soon(), "prefetch").wait(5000)
        monkeypatch.setattr(os, "getpid", lambda: -1)
        with pytest.raises(StorageClosed, match="parent"):
            pf.submit(*batch(1), soon(), "prefetch")
        monkeypatch.undo()


class Fates:
    """What became of pages, as a prefetcher tells it."""

    def __init__(self) -> None:
        self.told: list[dict[str, int]] = []

    def __call__(self, *counts: tuple[str, int]) -> None:
        self.told.append({name.removeprefix("prefetch."): n for name, n in counts})


def test_each_prefetch_tells_once_what_became_of_all_its_pages() -> None:
    fates, holes = Fates(), {7}

    def load(digests: Sequence[bytes], _pages: Pages, _deadline: Deadline) -> list[Outcome]:
        return [
            NEVER_WRITTEN if int.from_bytes(digest, "big") in holes else HIT for digest in digests
        ]

    with prefetcher(load, depth=1, on_end=fates) as pf:
        for pages in (4, 8, 12):
            handle = pf.submit(*batch(pages), soon(), "prefetch")
            assert handle.wait(5000)
            handle.cancel()  # too late to matter
    assert fates.told == [
        {"used": 4, "wasted": 0, "cancelled": 0, "unfulfilled": 0},
        {"used": 7, "wasted": 0, "cancelled": 0, "unfulfilled": 1},
        {"used": 7, "wasted": 0, "cancelled": 0, "unfulfilled": 5},
    ]


def test_what_is_loaded_behind_a_gap_or_after_a_cancel_was_wasted() -> None:
    fates, gate = Fates(), Gate()

    def with_a_hole(digests: Sequence[bytes], pages: Pages, until: Deadline) -> list[Outcome]:
        return [NEVER_WRITTEN, *gate(digests, pages, until)[1:]]

    gate.open.set()
    with prefetcher(with_a_hole, depth=1, on_end=fates) as pf:
        assert pf.submit(*batch(8), soon(), "prefetch").wait(5000)
    gate = Gate()
    with prefetcher(gate, depth=1, on_end=fates) as pf:
        handle = pf.submit(*batch(12), soon(), "prefetch")
        until(lambda: len(gate.begun) == 1)
        handle.cancel()
        gate.open.set()
        assert handle.wait(5000)
    with prefetcher(gate, depth=1, queue=8 * PAGE, on_end=fates) as pf:
        gate.open.clear()
        first = pf.submit(*batch(4), soon(), "prefetch")
        assert pf.submit(*batch(8), soon(), "prefetch").done  # no room in the queue
        gate.open.set()
        assert first.wait(5000)
    assert fates.told == [
        {"used": 0, "wasted": 3, "cancelled": 0, "unfulfilled": 5},
        {"used": 0, "wasted": 4, "cancelled": 8, "unfulfilled": 0},
        {"used": 0, "wasted": 0, "cancelled": 0, "unfulfilled": 8},
        {"used": 4, "wasted": 0, "cancelled": 0, "unfulfilled": 0},
    ]
