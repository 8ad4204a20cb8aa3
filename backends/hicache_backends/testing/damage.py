"""Damage on the medium: never wrong bytes, said so once, and repaired by the next put."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import pytest

from hicache_backends.outcomes import Reason
from hicache_backends.storage import PageStorage
from hicache_backends.testing.canaries import (
    NAMESPACE,
    PAGE_BYTES,
    Target,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
)
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.suite import Suite

_FLAWS = (Reason.CHECKSUM, Reason.IO_ERROR, Reason.STALE_LOCATION, Reason.EVICTED)
"""EVICTED: a medium that evicts by itself deletes pages without telling."""
_BITS = [0, 7, PAGE_BYTES * 4 - 1, PAGE_BYTES * 4, PAGE_BYTES * 4 + 1, PAGE_BYTES * 8 - 1]


class DamageTests(Suite):
    """What lies on the medium is changed behind the store's back."""

    @pytest.mark.parametrize("bit", _BITS)
    def test_one_flipped_bit_is_a_miss_and_the_next_put_repairs_it(
        self, storage: PageStorage, medium: Medium, bit: int
    ) -> None:
        pages = _stored(storage)
        medium.flip_bit(NAMESPACE, pages[4], bit)
        _assert_missed_then_repaired(storage, pages, 4)

    def test_a_truncated_page_is_a_miss_and_the_next_put_repairs_it(
        self, storage: PageStorage, medium: Medium
    ) -> None:
        pages = _stored(storage)
        medium.truncate(NAMESPACE, pages[8])
        found = get(storage, pages)  # the medium may have lost other pages with it
        assert not found[8]
        assert storage.contains(pages) == found
        assert all(put(storage, pages, parents=chain_parents(pages)))
        assert get(storage, pages) == [True] * 9

    def test_a_deleted_page_is_a_miss_and_the_next_put_repairs_it(
        self, storage: PageStorage, medium: Medium
    ) -> None:
        pages = _stored(storage)
        medium.delete(NAMESPACE, pages[4])
        _assert_missed_then_repaired(storage, pages, 4)

    def test_swapped_pages_are_misses_not_each_other(
        self, storage: PageStorage, medium: Medium
    ) -> None:
        pages = _stored(storage)
        medium.swap(NAMESPACE, pages[2], pages[6])
        assert get(storage, pages) == [i not in (2, 6) for i in range(9)]
        assert all(put(storage, pages, parents=chain_parents(pages)))
        assert get(storage, pages) == [True] * 9

    def test_damage_done_while_no_store_was_open_is_found(self, medium: Medium) -> None:
        if not medium.persistent:
            pytest.skip("the medium does not outlive its store")
        storage = medium.open(NAMESPACE)
        pages = _stored(storage)
        storage.close()
        medium.flip_bit(NAMESPACE, pages[4], 100)
        storage = medium.open(NAMESPACE)
        _assert_missed_then_repaired(storage, pages, 4)
        storage.close()

    def test_a_bad_page_is_gone_from_the_medium_too(
        self, storage: PageStorage, medium: Medium
    ) -> None:
        pages = _stored(storage)
        medium.flip_bit(NAMESPACE, pages[4], 0)
        get(storage, pages)
        assert medium.stored(NAMESPACE) == {*pages} - {pages[4]}

    def test_store_and_medium_list_the_same_pages(
        self, storage: PageStorage, medium: Medium
    ) -> None:
        pages = digests_of(*range(30))
        put(storage, pages)
        storage.remove(pages[::3])
        put(storage, pages[:2])
        assert medium.stored(NAMESPACE) == {
            page for page, there in zip(pages, storage.contains(pages), strict=True) if there
        }


def _stored(storage: PageStorage) -> list[bytes]:
    """Nine pages of one chain, stored one after another."""
    pages = digests_of(*range(9))
    assert all(put(storage, pages, parents=chain_parents(pages)))
    return pages


def _assert_missed_then_repaired(storage: PageStorage, pages: list[bytes], bad: int) -> None:
    expected = [i != bad for i in range(len(pages))]
    outcomes = storage.get(pages, Target(len(pages)).pages, soon())
    assert [outcome.ok for outcome in outcomes] == expected
    assert outcomes[bad].reason in _FLAWS
    assert storage.contains(pages) == expected, "a page found bad is removed"
    assert get(storage, pages) == expected
    outcomes = put(storage, pages, parents=chain_parents(pages))
    assert [(o.ok, o.existed) for o in outcomes] == [(True, there) for there in expected]
    assert get(storage, pages) == [True] * len(pages)
