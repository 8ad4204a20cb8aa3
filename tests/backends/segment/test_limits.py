"""What a limit costs a put: the records of pages that went, and how they are wiped."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.segment import filing
from hicache_backends.segment.segment import Segment
from hicache_backends.segment.state import StoreState
from hicache_backends.storage import PageStorage
from hicache_backends.testing.canaries import NAMESPACE, PAGE_BYTES, digests_of, put

PAGES = 32


@pytest.fixture
def wiped(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many records each wiping took."""
    counts: list[int] = []
    zero = filing.PlainFiling.zero

    def count(own: filing.PlainFiling, segment: Segment, slots: list[int], by: Deadline) -> None:
        counts.append(len(slots))
        zero(own, segment, slots, by)

    monkeypatch.setattr(filing.PlainFiling, "zero", count)
    return counts


def options(*roots: Path) -> NvmeOptions:
    return NvmeOptions(
        tuple(map(str, roots)),
        capacity_bytes=1 << 20,
        segment_bytes=64 << 10,
        free_floor_bytes=0,
    )


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[PageStorage]:
    with_limit = open_nvme(NAMESPACE, options(tmp_path / "root"))
    with_limit.restrict(PAGES * PAGE_BYTES, None)
    yield with_limit
    with_limit.close()


def test_a_put_at_the_limit_takes_the_slots_of_what_goes_and_wipes_nothing(
    storage: PageStorage, wiped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_for: list[int] = []
    monkeypatch.setattr(StoreState, "wipe_free", lambda _, slots, __: looked_for.extend(slots))
    for n in range(8):
        assert all(put(storage, digests_of(*(f"{n} {i}" for i in range(PAGES // 2)))))
    assert storage.stats()["pages"] == PAGES
    assert wiped == []
    assert looked_for == [], "among all free slots, of which there may be millions"


def test_what_goes_beyond_what_a_put_takes_is_wiped_in_one_call_a_segment(
    storage: PageStorage, wiped: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    old = digests_of(*(f"old {i}" for i in range(PAGES)))
    assert all(put(storage, old))
    storage.restrict(None, None)
    more = digests_of(*(f"more {i}" for i in range(PAGES)))
    assert all(put(storage, more))
    evictor = storage._evictor  # type: ignore[attr-defined]  # a limit that no heartbeat obeyed yet
    evictor._limit_pages = PAGES // 2

    def a_page_at_a_time(*_arguments: object) -> int:
        raise AssertionError("a write a record")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", a_page_at_a_time)
        assert all(put(storage, digests_of("new")))
    assert sum(wiped) == 2 * PAGES - PAGES // 2
    assert storage.stats()["pages"] == PAGES // 2


def test_pages_that_went_for_a_put_on_another_root_are_not_found_by_the_next_process(
    tmp_path: Path,
) -> None:
    roots = options(tmp_path / "a", tmp_path / "b")
    with_limit = open_nvme(NAMESPACE, roots)
    with_limit.restrict(4 * PAGE_BYTES, None)
    chosen = digests_of(*(f"page {i}" for i in range(PAGES)))
    for digest in chosen:
        assert all(put(with_limit, [digest]))
    held = with_limit.contains(chosen)
    assert with_limit.close()
    after = open_nvme(NAMESPACE, roots)
    assert after.contains(chosen) == held
    after.close()
