"""Opening again, closing, forking, and deadlines that have passed."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
from collections.abc import Callable

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageClosed
from hicache_backends.outcomes import Reason
from hicache_backends.storage import ROOT, UNKNOWN, PageStorage
from hicache_backends.testing.canaries import (
    NAMESPACE,
    Target,
    assert_truthful,
    canary,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
    source,
)
from hicache_backends.testing.concurrency import run_threads
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.suite import Suite

PAGE = digests_of("a page")
CALLS: dict[str, Callable[[PageStorage], object]] = {
    "put": lambda storage: storage.put(PAGE, source(PAGE), [UNKNOWN], soon()),
    "get": lambda storage: storage.get(PAGE, Target(1).pages, soon()),
    "contains": lambda storage: storage.contains(PAGE),
    "remove": lambda storage: storage.remove(PAGE),
}


class LifecycleTests(Suite):
    """A store from its opening to its end."""

    def test_pages_are_found_by_the_next_store(self, medium: Medium) -> None:
        _require_persistence(medium)
        pages = digests_of(*range(20))
        for reopened in range(3):
            storage = medium.open(NAMESPACE)
            assert storage.contains(pages) == [i < 5 * reopened for i in range(20)]
            assert get(storage, pages) == [i < 5 * reopened for i in range(20)]
            fresh = pages[5 * reopened : 5 * reopened + 5]
            assert [o.existed for o in put(storage, fresh)] == [False] * 5
            assert all(o.existed for o in put(storage, pages[: 5 * reopened]))
            assert storage.close()

    def test_removed_pages_stay_removed(self, medium: Medium) -> None:
        _require_persistence(medium)
        storage = medium.open(NAMESPACE)
        pages = digests_of(*range(6))
        put(storage, pages)
        storage.remove(pages[:3])
        storage.close()
        storage = medium.open(NAMESPACE)
        assert get(storage, pages) == [False] * 3 + [True] * 3
        storage.close()

    def test_after_reopening_no_page_outlives_the_pages_before_it(self, medium: Medium) -> None:
        _require_persistence(medium)
        if not medium.bounded:
            pytest.skip("this backend does not evict")
        chains = [digests_of(*(f"{c}/{i}" for i in range(5))) for c in range(3)]
        for reopened in range(4):
            storage = medium.open(NAMESPACE, capacity_pages=32)
            for chain in chains:
                put(storage, chain, parents=chain_parents(chain))
                get(storage, chain[2:])
            filler = digests_of(*(f"filler {reopened} {i}" for i in range(24)))
            for page in filler:
                put(storage, [page], parents=[ROOT])
                for chain in chains:
                    there = storage.contains(chain)
                    assert there == sorted(there, reverse=True)
            storage.close()

    def test_closing_twice_is_fine(self, storage: PageStorage) -> None:
        put(storage, PAGE)
        assert storage.close() is True
        assert storage.close() is True
        assert storage.close(timeout_ms=1) is True

    @pytest.mark.parametrize("call", sorted(CALLS))
    def test_a_closed_store_says_so(self, storage: PageStorage, call: str) -> None:
        storage.close()
        with pytest.raises(StorageClosed):
            CALLS[call](storage)

    @pytest.mark.parametrize("attempt", range(5))
    def test_closing_under_load_lets_calls_finish_or_refuses_them(
        self, storage: PageStorage, attempt: int
    ) -> None:
        pages = digests_of(*range(8))
        put(storage, pages)
        started = threading.Barrier(4)

        def read() -> None:
            started.wait(10)
            with contextlib.suppress(StorageClosed):
                while True:
                    assert get(storage, pages) == [True] * 8

        def close() -> None:
            started.wait(10)
            time.sleep(attempt / 1000)  # the calls are at another point each time
            assert storage.close()

        run_threads([read, read, read, close])

    def test_a_forked_child_is_refused_and_the_parent_goes_on(self, storage: PageStorage) -> None:
        put(storage, PAGE)
        assert _refusals_in_child(storage) == sorted(CALLS)
        assert get(storage, PAGE) == [True]
        assert all(put(storage, digests_of("after")))
        assert get(storage, digests_of("after")) == [True]

    def test_a_forked_child_that_closes_does_not_close_the_parent(
        self, storage: PageStorage
    ) -> None:
        put(storage, PAGE)
        _in_child(lambda: bytes(storage.close()))
        assert get(storage, PAGE) == [True]
        assert all(put(storage, digests_of("after")))

    def test_a_deadline_that_has_passed_times_every_page_out(self, storage: PageStorage) -> None:
        pages = digests_of(*range(4))
        put(storage, pages)
        fresh = digests_of("x", "y")
        past = Deadline(time.monotonic_ns() - 1)
        began = time.monotonic()
        gets = storage.get(pages, Target(4).pages, past)
        puts = storage.put(fresh, source(fresh), [UNKNOWN] * 2, past)
        assert time.monotonic() - began < 0.5
        assert_truthful(gets, 4)
        assert_truthful(puts, 2)
        assert {o.reason for o in [*gets, *puts]} == {Reason.TIMEOUT}
        assert storage.contains(fresh) == [False] * 2
        assert get(storage, pages) == [True] * 4
        assert all(put(storage, fresh))
        assert get(storage, fresh) == [True] * 2

    def test_what_a_call_was_given_is_not_needed_after_it(self, storage: PageStorage) -> None:
        pages = digests_of(*range(4))
        memory = source(pages)
        assert all(storage.put(pages, memory, [UNKNOWN] * 4, soon()))
        del memory
        target = Target(4)
        assert all(storage.get(pages, target.pages, soon()))
        for row in target.rows:
            row[0][:] = bytes(len(row[0]))
        assert get(storage, pages) == [True] * 4
        assert all(not any(target[i]) for i in range(4))
        assert canary(pages[0]) != target[0]


def _require_persistence(medium: Medium) -> None:
    if not medium.persistent:
        pytest.skip("the medium does not outlive its store")


def _refusals_in_child(storage: PageStorage) -> list[str]:
    def refused() -> bytes:
        names = []
        for name in sorted(CALLS):
            try:
                CALLS[name](storage)
            except StorageClosed:
                names.append(name)
        return " ".join(names).encode()

    return _in_child(refused).decode().split()


def _in_child(work: Callable[[], bytes]) -> bytes:
    """What `work` returns in a forked child, within 10 seconds."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # fork beside threads is what is tested
        child = os.fork()
    if not child:
        try:
            os.write(writer, work())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    assert status == 0, "the forked child failed"
    return answer
