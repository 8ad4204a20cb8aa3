"""Limits and times to live against any traffic, by a clock of the test's own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_backends.segment import policy
from hicache_backends.storage import PageStorage
from hicache_backends.testing.canaries import (
    NAMESPACE,
    PAGE_BYTES,
    chain_parents,
    digests_of,
    get,
    put,
)
from hicache_backends.testing.medium import Medium
from tests.backends.nvme_medium import NvmeMedium
from tests.backends.test_memory import RawMemory

CHAINS = [digests_of(*(f"{c}/{i}" for i in range(6))) for c in range(4)]
CAPACITY = 24
_put = st.tuples(st.just("put"), st.integers(0, 3), st.integers(1, 6))
_get = st.tuples(st.just("get"), st.integers(0, 3), st.integers(0, 5))
_wait = st.tuples(st.just("wait"), st.integers(0, 400), st.none())
_order = st.tuples(
    st.just("restrict"),
    st.none() | st.integers(0, CAPACITY),
    st.none() | st.integers(1, 1000),
)
Step = tuple[str, int | None, int | None]


class Site:
    """A store of few pages, what it was ordered, and when each page was last used."""

    def __init__(self, medium: Medium) -> None:
        self.now_ms = 1_000_000
        self.limit = CAPACITY
        self.used_ms: dict[bytes, int] = {}
        self.storage: PageStorage = medium.open(NAMESPACE, capacity_pages=CAPACITY)

    def put(self, chain: int, count: int) -> None:
        pages = CHAINS[chain][:count]
        outcomes = put(self.storage, pages, parents=chain_parents(pages))
        self._used([p for p, outcome in zip(pages, outcomes, strict=True) if outcome])

    def get(self, chain: int, start: int) -> None:
        pages = CHAINS[chain][start:]
        read = get(self.storage, pages)  # compares the bytes of those that are read
        self._used([page for page, there in zip(pages, read, strict=True) if there])

    def restrict(self, limit: int | None, ttl_ms: int | None) -> None:
        self.limit = CAPACITY if limit is None else limit
        assert self.storage.restrict(None if limit is None else limit * PAGE_BYTES, ttl_ms)
        if ttl_ms is not None:
            self._nothing_is_older_than(ttl_ms)

    def check(self) -> None:
        there = [self.storage.contains(chain) for chain in CHAINS]
        assert sum(map(sum, there)) <= self.limit
        assert all(row == sorted(row, reverse=True) for row in there), "a head went before a tail"

    def _used(self, pages: list[bytes]) -> None:
        self.used_ms.update(dict.fromkeys(pages, self.now_ms))

    def _nothing_is_older_than(self, ttl_ms: int) -> None:
        for chain in CHAINS:
            *_, tail = [None, *(p for p in chain if self.storage.contains([p])[0])]
            assert tail is None or self.now_ms - self.used_ms[tail] < ttl_ms


@pytest.fixture(params=["memory", "nvme"])
def make_medium(request: pytest.FixtureRequest) -> Callable[[str], Medium]:
    if request.param == "memory":
        return lambda _: RawMemory()
    return lambda directory: NvmeMedium(Path(directory))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(steps=st.lists(_put | _get | _wait | _order, max_size=30))
def test_no_order_is_exceeded_no_page_is_wrong_and_chains_keep_their_heads(
    make_medium: Callable[[str], Medium], steps: list[Step]
) -> None:
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        medium = make_medium(directory)
        site = Site(medium)
        patch.setattr(policy, "_now_ms", lambda: site.now_ms)
        for what, first, second in steps:
            if what == "wait":
                site.now_ms += first or 0
            else:
                getattr(site, what)(first, second)
            site.check()
        site.storage.close()
        medium.close()
