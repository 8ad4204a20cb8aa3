"""One outcome a key, in order, and right bytes behind every hit."""
# ruff: noqa: S101 - these are tests

from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterator

import pytest

from hicache_backends.errors import InvalidBuffer
from hicache_backends.outcomes import Reason
from hicache_backends.pages import Pages
from hicache_backends.storage import ROOT, UNKNOWN, PageStorage
from hicache_backends.testing.canaries import (
    FILLER,
    NAMESPACE,
    PAGE_BYTES,
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
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.suite import Suite


class BatchTests(Suite):
    """Put, get, contains and remove as one caller sees them."""

    hole_patterns: int | None = None
    """So many patterns of holes are tried, where calls are too slow for every one."""

    def test_a_page_put_is_a_page_got(self, storage: PageStorage) -> None:
        pages = digests_of(*range(5))
        outcomes = put(storage, pages, parents=chain_parents(pages))
        assert_truthful(outcomes, 5)
        assert [(o.ok, o.existed) for o in outcomes] == [(True, False)] * 5
        assert get(storage, pages) == [True] * 5
        assert storage.contains(pages) == [True] * 5

    def test_empty_batches_give_empty_lists(self, storage: PageStorage) -> None:
        nothing = Pages.from_buffers([], writable=True)
        assert storage.put([], nothing, [], soon()) == []
        assert storage.get([], nothing, soon()) == []
        assert storage.contains([]) == []
        assert storage.remove([]) == []

    def test_pages_never_written_are_missed_and_say_so(self, storage: PageStorage) -> None:
        put(storage, digests_of("other"))
        pages = digests_of(*range(9))
        target = Target(9)
        outcomes = storage.get(pages, target.pages, soon())
        assert [o.reason for o in outcomes] == [Reason.NEVER_WRITTEN] * 9
        assert storage.contains(pages) == [False] * 9
        assert_truthful([storage.explain(pages[0]), storage.explain(*digests_of("other"))], 2)
        assert not storage.explain(pages[0]).ok
        assert storage.explain(*digests_of("other")).ok

    @pytest.mark.parametrize("count", [7, 8, 9, 17])
    def test_every_pattern_of_holes_is_answered_page_by_page(
        self, storage: PageStorage, count: int
    ) -> None:
        pages = digests_of(*range(count))
        put(storage, pages, parents=chain_parents(pages))
        for mask in _masks(count, self.hole_patterns):
            holes = [page for i, page in enumerate(pages) if mask >> i & 1]
            assert all(storage.remove(holes))
            expected = [not mask >> i & 1 for i in range(count)]
            assert storage.contains(pages) == expected
            assert get(storage, pages) == expected
            outcomes = put(storage, pages, parents=chain_parents(pages))
            assert [(o.ok, o.existed) for o in outcomes] == [(True, there) for there in expected]

    @pytest.mark.parametrize("pieces", [1, 2, 56])
    def test_pages_in_pieces_are_the_same_pages(self, medium: Medium, pieces: int) -> None:
        size = 56 * 512
        storage = medium.open(dataclasses.replace(NAMESPACE, page_bytes=size))
        pages = digests_of(*range(9))
        assert all(put(storage, pages, page_bytes=size, pieces=pieces))
        for cut in (1, 2, 7, 56):
            assert get(storage, pages, page_bytes=size, pieces=cut) == [True] * 9
        storage.close()

    @pytest.mark.parametrize("size", [1, 2, 63, 1000, 4096, 4097, 12289])
    def test_any_page_size_is_stored_whole(self, medium: Medium, size: int) -> None:
        storage = medium.open(dataclasses.replace(NAMESPACE, page_bytes=size))
        pages = digests_of(*range(9))
        assert all(put(storage, pages, page_bytes=size))
        assert get(storage, pages[::-1], page_bytes=size) == [True] * 9
        storage.close()

    def test_scattered_and_reordered_reads_find_their_pages(self, storage: PageStorage) -> None:
        pages = digests_of(*range(64))
        put(storage, pages)
        for seed in range(20):
            chosen = random.Random(seed).choices([*pages, *digests_of("no", "none")], k=40)  # noqa: S311 - not cryptography
            assert get(storage, chosen) == [page in pages for page in chosen]

    def test_a_page_twice_in_a_batch_is_answered_twice(self, storage: PageStorage) -> None:
        a, b = digests_of("a", "b")
        batch = [a, b, a, a]
        outcomes = put(storage, batch)
        assert_truthful(outcomes, 4)
        assert all(outcomes)
        assert sum(not o.existed for o in outcomes) == 2
        assert get(storage, batch) == [True] * 4
        assert storage.contains(batch) == [True] * 4
        assert all(storage.remove(batch))
        assert get(storage, batch) == [False] * 4

    def test_a_second_put_writes_nothing(self, storage: PageStorage) -> None:
        pages = digests_of(*range(4))
        put(storage, pages)
        others = Pages.from_buffers([bytes(PAGE_BYTES)] * 4, writable=False)
        outcomes = storage.put(pages, others, [UNKNOWN] * 4, soon())
        assert [(o.ok, o.existed) for o in outcomes] == [(True, True)] * 4
        assert get(storage, pages) == [True] * 4

    def test_source_buffers_may_be_reused_right_after_a_put(self, storage: PageStorage) -> None:
        pages = digests_of(*range(8))
        buffers = [bytearray(canary(page)) for page in pages]
        outcomes = storage.put(
            pages, Pages.from_buffers(buffers, writable=False), chain_parents(pages), soon()
        )
        for buffer in buffers:
            buffer[:] = b"\xff" * PAGE_BYTES
        assert all(outcomes)
        assert get(storage, pages) == [True] * 8

    def test_pages_are_opaque_bytes(self, storage: PageStorage) -> None:
        contents = [bytes(PAGE_BYTES), b"\xff" * PAGE_BYTES, b"\xa5" * PAGE_BYTES]
        pages = digests_of(*range(3))
        storage.put(
            pages, Pages.from_buffers(contents, writable=False), chain_parents(pages), soon()
        )
        target = Target(3)
        assert all(storage.get(pages, target.pages, soon()))
        assert [target[i] for i in range(3)] == contents

    def test_a_get_writes_nowhere_else(self, storage: PageStorage) -> None:
        pages = digests_of(*range(6))
        put(storage, pages[:3])
        stride = 3 * PAGE_BYTES
        memory = bytearray([FILLER]) * (6 * stride)
        view = memoryview(memory)
        spots = [slice(i * stride + 77, i * stride + 77 + PAGE_BYTES) for i in range(6)]
        target = Pages.from_buffers([view[spot] for spot in spots], writable=True)
        outcomes = storage.get(pages, target, soon())
        assert [o.ok for o in outcomes] == [True] * 3 + [False] * 3
        for page, spot in zip(pages[:3], spots, strict=False):
            assert memory[spot] == canary(page)
        for spot in spots:
            view[spot] = bytes([FILLER]) * PAGE_BYTES
        assert memory == bytearray([FILLER]) * (6 * stride)

    def test_removing_a_page_leaves_the_others(self, storage: PageStorage) -> None:
        pages = digests_of(*range(6))
        put(storage, pages)
        assert_truthful(storage.remove(pages[1:3]), 2)
        assert get(storage, pages) == [True, False, False, True, True, True]
        outcomes = storage.remove([*pages[1:3], *digests_of("never")])
        assert [o.ok for o in outcomes] == [True] * 3

    def test_a_batch_of_hundreds_is_one_batch(self, storage: PageStorage) -> None:
        pages = digests_of(*range(300))
        assert all(put(storage, pages, parents=chain_parents(pages)))
        assert all(get(storage, pages))

    def test_a_buffer_that_cannot_hold_the_pages_is_refused_before_any_io(
        self, storage: PageStorage
    ) -> None:
        pages = digests_of(*range(3))
        put(storage, pages)
        fresh = digests_of("x", "y", "z")
        for target in _unfit_targets():
            with pytest.raises(InvalidBuffer):
                storage.get(pages, target, soon())
        for unfit in (source(fresh[:2]), source(fresh, PAGE_BYTES * 2), source(fresh, 1)):
            with pytest.raises(InvalidBuffer):
                storage.put(fresh, unfit, [UNKNOWN] * 3, soon())
        with pytest.raises(ValueError, match="parents"):
            storage.put(fresh, source(fresh), [ROOT], soon())
        assert storage.contains(fresh) == [False] * 3

    def test_entries_are_what_is_stored_heads_first(self, storage: PageStorage) -> None:
        if type(storage).entries is PageStorage.entries:
            pytest.skip("this backend lists no entries")
        pages = digests_of(*range(40))
        parents = chain_parents(pages)
        for start in (20, 0, 30, 10):
            put(storage, pages[start : start + 10], parents=parents[start : start + 10])
        storage.remove(pages[35:])
        found = list(storage.entries())
        assert [entry.digest for entry in found] == pages[:35]
        assert [entry.parent for entry in found] == parents[:35]

    def test_figures_agree_with_what_is_stored(self, storage: PageStorage) -> None:
        put(storage, digests_of(*range(10)))
        storage.remove(digests_of(*range(4)))
        figures = storage.stats()
        if "pages" not in figures:
            pytest.skip("this backend counts no pages")
        assert figures["pages"] == 6


def _masks(count: int, most: int | None) -> Iterator[int]:
    """Every subset of up to 9 pages; of more, or if there are to be at most so many, the extremes
    and a fixed sample."""
    if most is not None:
        yield from (0, 1, 1 << (count - 1), (1 << count) - 1)
        yield from random.Random(17).sample(range(1 << count), most)  # noqa: S311 - not cryptography
        return
    if count <= 9:
        yield from range(1 << count)
        return
    yield from (0, 1, 1 << (count - 1), (1 << count) - 1)
    yield from (1 << i for i in range(1, count - 1))
    yield from random.Random(17).sample(range(1 << count), 200)  # noqa: S311 - not cryptography


def _unfit_targets() -> list[Pages]:
    """Targets for three pages that are too few, too small, too large, or may not be written."""
    return [
        Target(2).pages,
        Target(4).pages,
        Target(3, PAGE_BYTES - 1).pages,
        Target(3, PAGE_BYTES * 2).pages,
        source(digests_of(0, 1, 2)),
    ]
