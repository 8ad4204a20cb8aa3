"""Pages read by the location that another store's put returned."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from hicache_backends.storage import PageStorage
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
)
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.suite import Suite


class LocationTests(Suite):
    """Two stores on one medium, one reading what the other wrote."""

    @pytest.fixture
    def reader(self, storage: PageStorage, medium: Medium) -> Iterator[PageStorage]:
        """A second store of the same namespace, open beside `storage`."""
        if not storage.capabilities.locations:
            pytest.skip("this backend reads no locations")
        reader = medium.open(NAMESPACE)
        yield reader
        reader.close()

    def test_another_store_reads_pages_where_they_were_put(
        self, storage: PageStorage, reader: PageStorage
    ) -> None:
        pages = digests_of(*range(9))
        places = [o.location for o in put(storage, pages, parents=chain_parents(pages))]
        assert all(places)
        assert len({*places}) == 9
        assert _read(reader, pages, places) == [True] * 9
        assert _read(reader, pages[::-1], places[::-1]) == [True] * 9

    def test_a_page_put_again_is_told_where_it_is(
        self, storage: PageStorage, reader: PageStorage
    ) -> None:
        pages = digests_of(*range(3))
        places = [o.location for o in put(storage, pages)]
        assert [o.location for o in put(storage, pages)] == places

    def test_entries_carry_the_locations(self, storage: PageStorage, reader: PageStorage) -> None:
        pages = digests_of(*range(3))
        places = [o.location for o in put(storage, pages, parents=chain_parents(pages))]
        assert [entry.location for entry in storage.entries()] == places

    def test_a_location_of_another_page_is_a_miss(
        self, storage: PageStorage, reader: PageStorage
    ) -> None:
        pages = digests_of(*range(4))
        places = [o.location for o in put(storage, pages)]
        assert _read(reader, pages, places[1:] + places[:1]) == [False] * 4
        assert get(storage, pages) == [True] * 4, "a wrong location is not the page's fault"

    def test_a_location_whose_page_is_gone_is_a_miss(
        self, storage: PageStorage, reader: PageStorage
    ) -> None:
        pages = digests_of(*range(4))
        places = [o.location for o in put(storage, pages)]
        storage.remove(pages[:2])
        others = digests_of(*(f"other {i}" for i in range(4)))
        put(storage, others)
        assert _read(reader, pages, places)[2:] == [True, True]

    def test_no_location_however_garbled_gives_wrong_bytes(
        self, storage: PageStorage, reader: PageStorage
    ) -> None:
        pages = digests_of(*range(8))
        places = [o.location for o in put(storage, pages)]
        for position in range(len(places[0])):
            garbled = [
                place[:position] + bytes([place[position] ^ (1 << i)]) + place[position + 1 :]
                for i, place in enumerate(places)
            ]
            _read(reader, pages, garbled)
        for length in range(49):
            _read(reader, pages, [os.urandom(length) for _ in pages])
            _read(reader, pages, [place[:length] for place in places])
        assert _read(reader, pages, places) == [True] * 8


def _read(storage: PageStorage, pages: Sequence[bytes], places: Sequence[bytes]) -> list[bool]:
    """Read by location; which were hits, each of them right."""
    target = Target(len(pages))
    outcomes = storage.get(pages, target.pages, soon(), places)
    assert_truthful(outcomes, len(pages))
    for i, outcome in enumerate(outcomes):
        assert not outcome.ok or target[i] == canary(pages[i]), f"page {i} has wrong bytes"
    return [outcome.ok for outcome in outcomes]
