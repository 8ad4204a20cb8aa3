"""Pages of host pools: computed addresses are the pool's own, wrong indices are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends.errors import InvalidBuffer
from hicache_backends.outcomes import HIT, NEVER_WRITTEN
from hicache_storage.sglang.host_pages import FlatPages, HostPages, page_numbers, tensor_pages
from tests.hicache_storage.sglang_plugin.stand_ins import (
    StandInFlatPool,
    StandInPool,
    StandInTensor,
    slots_of,
)

LAYOUTS = st.sampled_from(["page_first", "layer_first"])


def of(pool: Any) -> HostPages:
    pages = HostPages.of(pool)
    assert pages is not None
    return pages


@given(st.data())
def test_computed_addresses_are_those_that_the_pool_names(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 40))
    pool = StandInPool(
        data.draw(LAYOUTS),
        pages=count,
        page_size=data.draw(st.sampled_from([1, 2, 16, 128])),
        layers=data.draw(st.integers(1, 9)),
        start=data.draw(st.integers(0, 100)),
    )
    chosen = data.draw(st.lists(st.integers(0, count - 1), unique=True, max_size=20))
    pages, indices = of(pool), slots_of(chosen, pool.page_size)
    asked = pool.asked
    found = pages(indices, len(chosen), writable=True)
    assert pool.asked == asked or count == 1 or not chosen, "computed, not asked for"
    pointers, sizes = pool.get_page_buffer_meta(indices)
    assert found.addresses.ravel().tolist() == pointers
    assert found.sizes.ravel().tolist() == sizes
    assert (found.page_bytes or pages.page_bytes) == pages.page_bytes == pool.page_bytes
    found.check()


@given(LAYOUTS, st.integers(3, 12), st.data())
def test_a_pool_whose_pages_are_out_of_line_is_asked(
    layout: str, count: int, data: st.DataObject
) -> None:
    bent = data.draw(st.integers(0, count - 1))
    pool = StandInPool(layout, pages=count, bent=bent)
    pages = of(pool)
    asked = pool.asked
    found = pages(slots_of(range(count), pool.page_size), count, writable=True)
    assert pool.asked == asked + 1 or count > 7, "every page of a small pool is probed"
    if pool.asked > asked:
        pointers, _ = pool.get_page_buffer_meta(slots_of(range(count), pool.page_size))
        assert found.addresses.ravel().tolist() == pointers


def test_addresses_may_go_down_from_page_to_page() -> None:
    class Downwards(StandInPool):
        def _pieces(self, slot: int) -> list[int]:
            return super()._pieces(self.size - self.page_size - slot)

    pool = Downwards(pages=6)
    pages = of(pool)
    asked = pool.asked
    found = pages(slots_of([0, 5, 2], pool.page_size), 3, writable=True)
    assert pool.asked == asked
    pointers, _ = pool.get_page_buffer_meta(slots_of([0, 5, 2], pool.page_size))
    assert found.addresses.ravel().tolist() == pointers


@pytest.mark.parametrize(
    "answer",
    [None, ([], []), NotImplementedError(), ValueError(), AttributeError("kv_buffer")],
)
def test_a_pool_that_cannot_say_where_its_pages_lie_is_copied(answer: Any) -> None:
    class Silent(StandInPool):
        def get_page_buffer_meta(self, indices: Any) -> Any:
            if isinstance(answer, Exception):
                raise answer
            return answer

    assert HostPages.of(Silent()) is None
    assert HostPages.of(StandInFlatPool()) is None, "it has no such method"


@pytest.mark.parametrize("dtype", [np.int64, np.int32])
def test_indices_of_either_size_and_of_any_stride_name_their_pages(dtype: Any) -> None:
    pool = StandInPool(pages=6)
    straight = slots_of([4, 1], pool.page_size, dtype)
    strided = StandInTensor(np.repeat(straight.array, 2)[::2])
    assert not strided.is_contiguous()
    for indices in (straight, strided):
        assert page_numbers(pool, indices, 2).tolist() == [4, 1]
        assert page_numbers(pool, indices, 2).dtype == np.int64


@pytest.mark.parametrize(
    ("slots", "count"),
    [
        ([0, 1, 2], 1),  # less than a page
        ([0, 1, 2, 3, 4], 1),
        ([0, 1, 2, 3], 2),
        ([1, 2, 3, 4], 1),  # not where a page begins
        ([0, 1, 2, 4], 1),  # not in one piece
        ([-4, -3, -2, -1], 1),
        ([24, 25, 26, 27], 1),  # behind the pool
        ([20, 21, 22, 23, 24, 25, 26, 27], 2),
        ([1 << 40, (1 << 40) + 1, (1 << 40) + 2, (1 << 40) + 3], 1),
    ],
)
def test_indices_that_are_no_pages_are_refused(slots: list[int], count: int) -> None:
    pool = StandInPool(pages=6)
    indices = StandInTensor(np.array(slots, np.int64))
    for writable in (False, True):
        with pytest.raises(InvalidBuffer):
            of(pool)(indices, count, writable=writable)
    with pytest.raises(InvalidBuffer):
        FlatPages(StandInFlatPool()).read(indices, count)


def test_no_indices_are_no_pages() -> None:
    pages = of(StandInPool())
    assert len(pages(None, 0, writable=True)) == 0
    with pytest.raises(InvalidBuffer, match="0 indices"):
        pages(None, 1, writable=True)


def test_one_host_page_is_never_the_target_of_two_keys() -> None:
    pool = StandInPool()
    twice = slots_of([2, 3, 2], pool.page_size)
    with pytest.raises(InvalidBuffer, match="two keys"):
        of(pool)(twice, 3, writable=True)
    assert len(of(pool)(twice, 3, writable=False)) == 3, "but may be stored twice"


def test_the_memory_lives_as_long_as_its_pages() -> None:
    pool = StandInPool()
    assert pool in of(pool)(slots_of([0], pool.page_size), 1, writable=False).keep


def test_a_page_of_a_flat_pool_is_written_only_where_it_was_read() -> None:
    pool = StandInFlatPool()
    pages = FlatPages(pool)
    assert pages.page_bytes == pool.page_bytes
    indices = slots_of([1, 4], pool.page_size)
    targets = pages.targets(2)
    for number, target in enumerate(targets, 1):
        target.array[...] = number
    pages.write(indices, targets, [NEVER_WRITTEN, HIT])
    assert pool.memory.any(axis=1).tolist() == [False, False, False, False, True, False]
    assert [page.array.tolist()[0] for page in pages.read(indices, 2)] == [0.0, 2.0]


def test_a_tensor_elsewhere_or_in_pieces_is_no_page() -> None:
    pieces = StandInTensor(np.zeros(8, np.uint8)[::2])
    elsewhere = StandInTensor(np.zeros(8, np.uint8))
    elsewhere.device = type(elsewhere.device)(type="cuda")
    for tensor in (pieces, elsewhere):
        with pytest.raises(InvalidBuffer, match="contiguous CPU tensor"):
            tensor_pages([tensor], writable=True)
