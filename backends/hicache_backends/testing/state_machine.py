"""Any sequence of calls against a model, found by Hypothesis."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from hicache_backends.storage import UNKNOWN, PageStorage
from hicache_backends.testing.canaries import (
    NAMESPACE,
    PAGE_BYTES,
    chain_parents,
    digests_of,
    get,
    put,
)
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.suite import Suite

CHAIN = digests_of(*(f"chain {i}" for i in range(8)))
BRANCH = digests_of(*(f"branch {i}" for i in range(6)))
LOOSE = digests_of(*range(6))
PAGES = [*CHAIN, *BRANCH, *LOOSE]
PARENTS = dict(zip(PAGES, [*chain_parents(CHAIN), CHAIN[3], *BRANCH[:-1]], strict=False))
CAPACITY = 12

_pages = st.lists(st.sampled_from(PAGES), max_size=9)
_runs = st.tuples(st.sampled_from([CHAIN, BRANCH, LOOSE]), st.integers(0, 7), st.integers(1, 8))


class PageStorageMachine(RuleBasedStateMachine):
    """A store under any calls. `make_medium` gives a fresh medium; `capacity_pages` None: the
    model knows exactly which pages are there; otherwise it knows which may be."""

    make_medium: Callable[[], Medium]
    capacity_pages: int | None = None

    @initialize()
    def open(self) -> None:
        """A fresh medium with a store on it."""
        self.medium: Medium = type(self).make_medium()
        self.storage: PageStorage = self.medium.open(NAMESPACE, capacity_pages=self.capacity_pages)
        self.there: set[bytes] = set()
        self.damaged: set[bytes] = set()
        self.limit = CAPACITY

    @rule(run=_runs)
    def put_run(self, run: tuple[list[bytes], int, int]) -> None:
        """Store some pages of a chain, in order."""
        pages = run[0][run[1] : run[1] + run[2]]
        outcomes = put(self.storage, pages, parents=[PARENTS.get(p, UNKNOWN) for p in pages])
        for page, outcome in zip(pages, outcomes, strict=True):
            if self.capacity_pages is None:
                assert outcome.ok
                assert outcome.existed == (page in self.there)
            if outcome.ok:
                assert not outcome.existed or page in self.there
                self._note_stored(page, existed=outcome.existed)
        self._forget_evicted()
        kept = self.storage.contains(pages)
        assert all(there for there, outcome in zip(kept, outcomes, strict=True) if outcome.ok)

    @rule(pages=_pages)
    def get_pages(self, pages: list[bytes]) -> None:
        """Read any pages in any order, some more than once."""
        assert get(self.storage, pages) == [
            page in self.there and page not in self.damaged for page in pages
        ]
        self.there -= self.damaged & {*pages}
        self.damaged -= {*pages}

    @rule(pages=_pages)
    def remove_pages(self, pages: list[bytes]) -> None:
        """Forget any pages."""
        assert all(self.storage.remove(pages))
        self.there -= {*pages}
        self.damaged -= {*pages}

    @precondition(lambda self: self.medium.offers("flip_bit") and self.there)
    @rule(data=st.data(), bit=st.integers(0, PAGE_BYTES * 8 - 1))
    def damage(self, data: st.DataObject, bit: int) -> None:
        """Flip a bit of a stored page."""
        page = data.draw(st.sampled_from(sorted(self.there - self.damaged) or [b""]))
        if page:
            self.medium.flip_bit(NAMESPACE, page, bit)
            self.damaged.add(page)

    @precondition(lambda self: self.medium.persistent)
    @rule()
    def reopen(self) -> None:
        """Close the store and open the next."""
        assert self.storage.close()
        self.storage = self.medium.open(NAMESPACE, capacity_pages=self.capacity_pages)
        self.limit = CAPACITY  # orders are given again

    @precondition(lambda self: self.capacity_pages is not None)
    @rule(limit=st.none() | st.integers(0, CAPACITY), ttl_ms=st.sampled_from([None, 3_600_000]))
    def restrict(self, limit: int | None, ttl_ms: int | None) -> None:
        """Order the store to keep less, or as much as it can."""
        limit_bytes = None if limit is None else limit * PAGE_BYTES
        if self.storage.restrict(limit_bytes, ttl_ms) and limit is not None:
            self.limit = limit
        else:
            self.limit = CAPACITY

    @invariant()
    def holds_what_the_model_holds(self) -> None:
        """Index, figures and raw listing agree."""
        if not hasattr(self, "storage"):
            return
        self._forget_evicted()
        assert self.storage.contains(PAGES) == [page in self.there for page in PAGES]
        figures = self.storage.stats()
        assert figures.get("pages", len(self.there)) == len(self.there)
        if self.capacity_pages is not None:
            assert len(self.there) <= min(self.capacity_pages, self.limit)
        if self.medium.offers("stored"):
            assert self.medium.stored(NAMESPACE) == self.there

    def teardown(self) -> None:
        """Close what was opened."""
        if hasattr(self, "storage"):
            self.storage.close()
            self.medium.close()

    def _note_stored(self, page: bytes, *, existed: bool) -> None:
        self.there.add(page)
        if not existed:
            self.damaged.discard(page)

    def _forget_evicted(self) -> None:
        """Of a bounded store the model learns what was evicted; it may not gain pages."""
        if self.capacity_pages is None:
            return
        found = self.storage.contains(PAGES)
        self.there &= {page for page, there in zip(PAGES, found, strict=True) if there}
        self.damaged &= self.there


class StateMachineTests(Suite):
    """The machine, with room for everything and with too little, so many times."""

    machine_examples = 50

    @pytest.mark.parametrize("capacity", [None, CAPACITY])
    def test_any_sequence_of_calls_agrees_with_the_model(
        self, tmp_path: Path, capacity: int | None
    ) -> None:
        made = [0]

        def make_medium() -> Medium:
            made[0] += 1
            directory = tmp_path / str(made[0])
            directory.mkdir()
            return self.make_medium(directory)

        medium = make_medium()
        medium.close()
        if capacity is not None and not medium.bounded:
            pytest.skip("this backend does not evict")

        class Machine(PageStorageMachine):
            capacity_pages = capacity

        Machine.make_medium = staticmethod(make_medium)
        run_state_machine_as_test(
            Machine,
            settings=settings(
                max_examples=self.machine_examples,
                stateful_step_count=30,
                deadline=None,
                suppress_health_check=list(HealthCheck),
            ),
        )
