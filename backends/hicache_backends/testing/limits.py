"""What a store does that is told to keep less than it has room for, or nothing for too long."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from hicache_backends.outcomes import Reason
from hicache_backends.storage import ROOT, PageStorage
from hicache_backends.testing.canaries import (
    PAGE_BYTES,
    Target,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
)
from hicache_backends.testing.eviction import StubKeeper
from hicache_backends.testing.suite import Suite

LIMIT = 8
TTL_MS = 600
"""Longer than any call here takes."""


class LimitTests(Suite):
    """Orders of `restrict`, where a backend obeys them."""

    def test_a_limit_holds_from_the_call_on_and_ends_when_it_is_lifted(
        self, storage: PageStorage
    ) -> None:
        pages = digests_of(*range(5 * LIMIT))
        _put_singly(storage, pages[: 2 * LIMIT])
        _restrict(storage, LIMIT * PAGE_BYTES + PAGE_BYTES // 2)
        assert storage.contains(pages[: 2 * LIMIT]) == [False] * LIMIT + [True] * LIMIT
        for page in pages[2 * LIMIT :]:
            _put_singly(storage, [page])
            assert sum(storage.contains(pages)) == LIMIT
        assert get(storage, pages) == [False] * 4 * LIMIT + [True] * LIMIT
        gone = storage.get(pages[:4], Target(4).pages, soon())
        assert {outcome.reason for outcome in gone} == {Reason.EVICTED}
        _restrict(storage, None)
        _put_singly(storage, pages)
        assert get(storage, pages) == [True] * len(pages)
        assert storage.counters()["evicted.quota"] == 4 * LIMIT

    def test_no_batch_exceeds_a_limit_and_its_head_is_what_is_stored(
        self, storage: PageStorage
    ) -> None:
        chain = digests_of(*range(3 * LIMIT))
        _restrict(storage, LIMIT * PAGE_BYTES)
        outcomes = put(storage, chain, parents=chain_parents(chain))
        assert [outcome.ok for outcome in outcomes] == [True] * LIMIT + [False] * 2 * LIMIT
        assert {outcome.reason for outcome in outcomes[LIMIT:]} == {Reason.QUOTA}
        assert storage.contains(chain) == [outcome.ok for outcome in outcomes]

    def test_a_limit_takes_the_tails_of_chains_before_their_heads(
        self, storage: PageStorage
    ) -> None:
        chains = [digests_of(*(f"{c}/{i}" for i in range(6))) for c in range(4)]
        for chain in chains:
            put(storage, chain, parents=chain_parents(chain))
        for pages in range(24, -1, -3):
            for chain in chains:
                get(storage, chain[3:])  # the heads are hot above, and never asked for
            _restrict(storage, pages * PAGE_BYTES)
            there = [storage.contains(chain) for chain in chains]
            assert all(row == sorted(row, reverse=True) for row in there)
            assert sum(map(sum, there)) == pages

    def test_a_limit_of_nothing_refuses_pages_and_breaks_nothing(
        self, storage: PageStorage
    ) -> None:
        pages = digests_of(*range(4))
        _restrict(storage, 0)
        assert {o.reason for o in put(storage, pages)} == {Reason.QUOTA}
        _restrict(storage, None)
        assert all(put(storage, pages))

    def test_the_keeper_is_asked_before_a_limit_takes_a_page(self, storage: PageStorage) -> None:
        pages = digests_of(*range(2 * LIMIT))
        _put_singly(storage, pages)
        keeper = StubKeeper(lambda entry: entry.digest != pages[0])
        storage.set_keeper(keeper)
        _restrict(storage, LIMIT * PAGE_BYTES)
        there = storage.contains(pages)
        assert there[0]
        assert sum(there) == LIMIT
        assert {entry.digest for entry in keeper.asked} >= {*pages[: LIMIT + 1]}
        keeper.allow = lambda entry: False
        _restrict(storage, 0)
        assert storage.contains(pages) == there

    def test_what_nobody_uses_expires_and_says_so_while_what_is_used_stays(
        self, storage: PageStorage
    ) -> None:
        hot, *cold = digests_of(*range(6))
        put(storage, [hot, *cold], parents=[ROOT] * 6)
        _restrict(storage, None, 3_600_000)
        assert all(storage.contains([hot, *cold]))

        def expired() -> bool:
            assert get(storage, [hot]) == [True]
            storage.restrict(None, TTL_MS)
            return not any(storage.contains(cold))

        _until(expired)
        assert storage.contains([hot]) == [True]
        assert storage.explain(cold[0]).reason is Reason.EXPIRED
        counters = storage.counters()
        assert counters["evicted.ttl"] == 5
        assert sum(n for name, n in counters.items() if name.startswith("age.")) == 5

    def test_a_chain_expires_from_its_tail(self, storage: PageStorage) -> None:
        chain = digests_of(*range(6))
        put(storage, chain, parents=chain_parents(chain))
        _restrict(storage, None, 3_600_000)

        def expired() -> bool:
            get(storage, chain[2:4])  # uses the pages before them, too
            storage.restrict(None, TTL_MS)
            assert storage.contains(chain[:4]) == [True] * 4
            return not any(storage.contains(chain[4:]))

        _until(expired)

        def all_expired() -> bool:
            _restrict(storage, None, 1)
            there = storage.contains(chain)
            assert there == sorted(there, reverse=True)
            return not any(there)

        _until(all_expired)


def _restrict(storage: PageStorage, limit_bytes: int | None, ttl_ms: int | None = None) -> None:
    """As at a few heartbeats: one need not be enough."""
    for _ in range(3):
        if not storage.restrict(limit_bytes, ttl_ms):
            pytest.skip("this backend takes no limits")


def _put_singly(storage: PageStorage, pages: list[bytes]) -> None:
    """The first is the first to go, then."""
    for page in pages:
        assert put(storage, [page], parents=[ROOT])[0].ok


def _until(happened: Callable[[], bool]) -> None:
    """Time passes by itself, so that there is nothing to wait for but the clock."""
    give_up = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < give_up
        time.sleep(0.005)
