"""Bounded by default: what goes when space runs out, and what never does."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.outcomes import Reason
from hicache_backends.storage import ROOT, PageEntry, PageStorage
from hicache_backends.testing.canaries import (
    NAMESPACE,
    Target,
    assert_truthful,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
)
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.suite import Suite

CAPACITY = 32


class StubKeeper:
    """Says what may be evicted, and remembers what it was asked and told."""

    def __init__(self, allow: Callable[[PageEntry], bool]) -> None:
        self.allow = allow
        self.asked: list[PageEntry] = []
        self.told: list[PageEntry] = []

    def may_evict(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
    ) -> Sequence[bool]:
        """One answer an entry."""
        assert len(entries) == len(touched_ms)
        assert all(0 <= ms < 3_600_000 for ms in touched_ms)
        self.asked.extend(entries)
        return [self.allow(entry) for entry in entries]

    def gone(self, entries: Sequence[PageEntry]) -> None:
        """Pages that left without being asked for."""
        self.told.extend(entries)


class EvictionTests(Suite):
    """A store of few pages under many."""

    @pytest.fixture
    def small(self, medium: Medium) -> Iterator[PageStorage]:
        """A store that holds between half of CAPACITY and CAPACITY pages."""
        if not medium.bounded:
            pytest.skip("this backend does not evict")
        storage = medium.open(NAMESPACE, capacity_pages=CAPACITY)
        yield storage
        storage.close()

    def test_it_never_holds_more_than_its_capacity_and_says_evicted(
        self, small: PageStorage
    ) -> None:
        pages = digests_of(*range(3 * CAPACITY))
        for start in range(0, len(pages), 4):
            assert all(put(small, pages[start : start + 4], parents=[ROOT] * 4))
            held = sum(small.contains(pages))
            assert held >= min(start, CAPACITY // 2)
            assert held <= CAPACITY
        there = small.contains(pages)
        assert there[-4:] == [True] * 4
        assert get(small, pages) == there
        outcomes = small.get(pages[:4], Target(4).pages, soon())
        assert {o.reason for o in outcomes} <= {Reason.EVICTED, Reason.NEVER_WRITTEN}

    def test_a_page_in_use_outlives_pages_that_are_not(self, small: PageStorage) -> None:
        hot, *cold = digests_of(*range(4 * CAPACITY))
        put(small, [hot], parents=[ROOT])
        for page in cold:
            put(small, [page], parents=[ROOT])
            assert get(small, [hot]) == [True]

    def test_asking_whether_a_page_is_there_does_not_keep_it(self, small: PageStorage) -> None:
        first, *others = digests_of(*range(4 * CAPACITY))
        put(small, [first], parents=[ROOT])
        for page in others:
            put(small, [page], parents=[ROOT])
            small.contains([first])
        assert small.contains([first]) == [False]

    def test_no_page_outlives_the_pages_before_it(self, small: PageStorage) -> None:
        """The heads are never asked for, as when an engine's upper levels hold them."""
        chains = [digests_of(*(f"{c}/{i}" for i in range(6))) for c in range(4)]
        for round_number in range(6):
            for chain in chains:
                put(small, chain, parents=chain_parents(chain))
                get(small, chain[3:])
            filler = digests_of(*(f"filler {round_number} {i}" for i in range(10)))
            put(small, filler, parents=[ROOT] * len(filler))
            for chain in chains:
                _assert_prefix(small.contains(chain))

    def test_of_a_batch_too_large_for_it_the_pages_told_stored_are_there(
        self, small: PageStorage
    ) -> None:
        put(small, digests_of(*(f"old {i}" for i in range(CAPACITY))))
        chain = digests_of(*range(2 * CAPACITY))
        outcomes = put(small, chain, parents=chain_parents(chain))
        assert_truthful(outcomes, len(chain))
        stored = [outcome.ok for outcome in outcomes]
        assert sum(stored) >= CAPACITY // 2
        assert {o.reason for o in outcomes if not o.ok} == {Reason.NO_SPACE}
        assert small.contains(chain) == stored
        assert get(small, chain) == stored
        _assert_prefix(stored)

    def test_parents_in_a_circle_do_not_block_it(self, small: PageStorage) -> None:
        ring = digests_of(*(f"ring {i}" for i in range(CAPACITY // 2)))
        put(small, ring, parents=[ring[-1], *ring[:-1]])
        own = digests_of(*(f"own parent {i}" for i in range(CAPACITY // 2)))
        put(small, own, parents=own)
        for page in digests_of(*range(2 * CAPACITY)):
            assert put(small, [page], parents=[ROOT])[0].ok

    def test_what_is_removed_makes_room(self, small: PageStorage) -> None:
        kept = digests_of("kept")
        put(small, kept, parents=[ROOT])
        for round_number in range(3 * CAPACITY):
            pages = digests_of(*(f"{round_number} {i}" for i in range(4)))
            assert all(put(small, pages, parents=[ROOT] * 4))
            assert all(small.remove(pages))
        assert get(small, kept) == [True]

    def test_an_evicted_page_can_be_put_again(self, small: PageStorage) -> None:
        pages = digests_of(*range(2 * CAPACITY))
        for _ in range(3):
            for page in pages:
                assert put(small, [page], parents=[ROOT])[0].ok
                assert get(small, [page]) == [True]

    def test_what_the_keeper_keeps_is_not_evicted(self, small: PageStorage) -> None:
        wanted = digests_of(*(f"wanted {i}" for i in range(4)))
        put(small, wanted, parents=[ROOT] * 4)
        keeper = StubKeeper(lambda entry: entry.digest not in wanted)
        small.set_keeper(keeper)
        for page in digests_of(*range(3 * CAPACITY)):
            assert put(small, [page], parents=[ROOT])[0].ok
        assert small.contains(wanted) == [True] * 4
        assert {entry.digest for entry in keeper.asked} >= {*wanted}
        assert {entry.parent for entry in keeper.asked} == {ROOT}

    def test_what_the_keeper_keeps_has_the_pages_before_it(self, small: PageStorage) -> None:
        chain = digests_of(*(f"chain {i}" for i in range(6)))
        put(small, chain, parents=chain_parents(chain))
        small.set_keeper(StubKeeper(lambda entry: entry.digest != chain[-1]))
        for n in range(3 * CAPACITY):
            filler = digests_of(*(f"filler {n} {i}" for i in range(4)))
            put(small, filler, parents=[ROOT] * 4)
            assert small.contains(chain) == [True] * 6

    def test_a_keeper_that_keeps_everything_fills_the_store_and_breaks_nothing(
        self, small: PageStorage
    ) -> None:
        keeper = StubKeeper(lambda entry: False)
        small.set_keeper(keeper)
        pages = digests_of(*range(2 * CAPACITY))
        stored = []
        for page in pages:
            outcomes = put(small, [page], parents=[ROOT])
            assert outcomes[0].reason in (None, Reason.NO_SPACE)
            stored.append(outcomes[0].ok)
        assert CAPACITY // 2 <= sum(stored) <= CAPACITY
        assert get(small, pages) == stored
        keeper.allow = lambda entry: True
        assert all(put(small, digests_of("after"), parents=[ROOT]))

    def test_the_keeper_is_told_of_pages_that_go_for_other_reasons(
        self, small: PageStorage, medium: Medium
    ) -> None:
        keeper = StubKeeper(lambda entry: True)
        pages = digests_of(*range(4))
        put(small, pages, parents=chain_parents(pages))
        small.set_keeper(keeper)
        small.remove([pages[3], *digests_of("never")])
        assert [entry.digest for entry in keeper.told] == [pages[3]]
        if medium.offers("flip_bit"):
            medium.flip_bit(NAMESPACE, pages[2], 3)
            get(small, pages)
            assert [entry.digest for entry in keeper.told] == [pages[3], pages[2]]

    def test_the_keeper_is_asked_with_no_lock_held(self, small: PageStorage) -> None:
        pages = digests_of(*range(2 * CAPACITY))

        def use_from_another_thread(entry: PageEntry) -> bool:
            done = threading.Event()

            def use() -> None:
                small.contains(pages)
                get(small, pages[:2])
                done.set()

            threading.Thread(target=use, daemon=True).start()
            assert done.wait(10), "the store is locked while its keeper is asked"
            return True

        small.set_keeper(StubKeeper(use_from_another_thread))
        for page in pages:
            assert put(small, [page], parents=[ROOT])[0].ok


def _assert_prefix(there: Sequence[bool]) -> None:
    """Nothing after the first page that is gone."""
    assert list(there) == sorted(there, reverse=True), "a page outlived the pages before it"
