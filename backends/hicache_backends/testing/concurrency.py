"""Many threads on one store: never a wrong page, never a lost slot."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable

import pytest

from hicache_backends.outcomes import Reason
from hicache_backends.storage import ROOT, PageStorage
from hicache_backends.testing.canaries import (
    NAMESPACE,
    canary,
    chain_parents,
    digests_of,
    get,
    put,
    read,
)
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.suite import Suite

CAPACITY = 16
ABSENT = {None, Reason.NEVER_WRITTEN, Reason.EVICTED, Reason.BEING_WRITTEN}


class ConcurrencyTests(Suite):
    """Putters, getters and removers beside each other, for `churn_seconds`."""

    churn_seconds = 1.0

    def test_a_churning_store_never_gives_a_wrong_page(self, medium: Medium) -> None:
        storage = medium.open(NAMESPACE, capacity_pages=CAPACITY)
        pages = digests_of(*range(4 * CAPACITY))
        warm = [canary(page) for page in pages]
        assert len({*warm}) == len(pages)
        hits = [0]

        def write(chance: random.Random) -> None:
            start = chance.randrange(len(pages) - 8)
            chosen = pages[start : start + 8]
            outcomes = put(storage, chosen, parents=chain_parents(pages)[start : start + 8])
            assert {o.reason for o in outcomes} <= {None, Reason.NO_SPACE, Reason.BEING_WRITTEN}

        def look(chance: random.Random) -> None:
            outcomes = read(storage, chance.sample(pages, 8))
            hits[0] += sum(outcome.ok for outcome in outcomes)
            assert {o.reason for o in outcomes} <= ABSENT, "a slot was reused under its reader"

        def forget(chance: random.Random) -> None:
            assert all(storage.remove(chance.sample(pages, 2)))

        run_together([write, write, look, look, look, forget], self.churn_seconds)
        assert hits[0], "nothing was ever read: the test shows nothing"
        _assert_whole(storage, bounded=medium.bounded)
        storage.close()

    def test_writers_of_one_page_all_succeed_and_one_wrote(self, storage: PageStorage) -> None:
        for round_number in range(30):
            pages = digests_of(*(f"{round_number} {i}" for i in range(4)))
            start = threading.Barrier(6)
            wrote: list[int] = []

            def write(pages: list[bytes] = pages, start: threading.Barrier = start) -> None:
                start.wait(10)
                outcomes = put(storage, pages)
                assert all(o.ok or o.reason is Reason.BEING_WRITTEN for o in outcomes), outcomes
                wrote.append(sum(o.ok and not o.existed for o in outcomes))  # noqa: B023 - joined in the round
                found = storage.contains(pages)
                assert not any(o.ok and not there for o, there in zip(outcomes, found, strict=True))

            run_threads([write] * 6)
            assert sum(wrote) == 4
            assert get(storage, pages) == [True] * 4


def _assert_whole(storage: PageStorage, *, bounded: bool) -> None:
    """Once everything is removed, the store takes as many pages as ever."""
    if not bounded:
        return
    everything = digests_of(*range(4 * CAPACITY))
    storage.remove(everything)
    fresh = digests_of(*(f"fresh {i}" for i in range(CAPACITY // 2)))
    for page in fresh:
        assert put(storage, [page], parents=[ROOT])[0].ok
    assert get(storage, fresh) == [True] * len(fresh), "slots were lost"


def run_together(jobs: list[Callable[[random.Random], None]], seconds: float) -> None:
    """Repeat each job in a thread of its own for a while; the first failure is raised."""
    end = time.monotonic() + seconds

    def repeat(job: Callable[[random.Random], None], seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 - not cryptography
        while time.monotonic() < end:
            job(chance)
            time.sleep(0.0001)  # let others at the store's lock, as a caller with other work does

    run_threads([lambda job=job, seed=seed: repeat(job, seed) for seed, job in enumerate(jobs)])  # type: ignore[misc]  # mypy infers no types for lambda defaults


def run_threads(jobs: list[Callable[[], None]]) -> None:
    """Run each job in a thread of its own to its end; the first failure is raised."""
    failures: list[BaseException] = []

    def guarded(job: Callable[[], None]) -> None:
        try:
            job()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        if thread.is_alive():
            pytest.fail("a thread hangs")
    if failures:
        raise failures[0]
