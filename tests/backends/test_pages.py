from __future__ import annotations

import array
import gc
import mmap
import weakref
from typing import Any

import numpy as np
import pytest

from hicache_backends.errors import InvalidBuffer
from hicache_backends.pages import Pages

_ROOM = bytearray(100)
_view = memoryview(_ROOM)


@pytest.mark.parametrize(
    ("buffers", "message"),
    [
        ([b"read only"], "read-only"),
        ([memoryview(_ROOM).toreadonly()], "read-only"),
        ([memoryview(_ROOM)[::2]], "not contiguous"),
        ([np.zeros((8, 8), np.uint8).T[:4]], "not contiguous"),
        ([np.asfortranarray(np.zeros((8, 8), np.uint8))], "not contiguous"),
        (["text"], "buffer protocol"),
        ([None], "buffer protocol"),
        ([7], "buffer protocol"),
        ([bytearray()], "empty"),
        ([[bytearray(4), bytearray()]], "empty"),
        ([bytearray(4), bytearray(5)], "different sizes"),
        ([[bytearray(4)], [bytearray(2), bytearray(2)]], "numbers of pieces"),
        ([_view[:50], _view[49:99]], "overlap"),
        ([_view[:50], _view[:50]], "overlap"),
        ([[_view[:20], _view[10:30]]], "overlap"),
        ([[_view[:10], _view[20:30]], [_view[29:39], _view[50:60]]], "overlap"),
        ([[]], "no pieces"),
        ([[bytearray(4)], []], "numbers of pieces"),
    ],
)
def test_a_buffer_that_cannot_take_pages_is_refused_with_its_reason(
    buffers: list[Any], message: str
) -> None:
    with pytest.raises(InvalidBuffer, match=message):
        Pages.from_buffers(buffers, writable=True)


def test_sources_may_be_read_only_and_overlap() -> None:
    pages = Pages.from_buffers([b"read only", _view[:9], _view[:9]], writable=False)
    assert len(pages) == 3
    assert not pages.writable


def test_neighbours_do_not_overlap() -> None:
    pages = Pages.from_buffers([_view[50:], _view[:50]], writable=True)
    assert pages.page_bytes == 50


def test_shape_counts_pages_and_pieces() -> None:
    pages = Pages.from_buffers([[bytearray(3), bytearray(5)] for _ in range(4)], writable=True)
    assert (len(pages), pages.pieces, pages.page_bytes) == (4, 2, 8)
    assert pages.sizes.tolist() == [[3, 5]] * 4
    assert (len(pages[1:3]), pages[[0, 3]].pieces) == (2, 2)
    assert pages[[2]].addresses.tolist() == [pages.addresses[2].tolist()]


def test_no_pages_are_a_batch_too() -> None:
    for pages in (
        Pages.from_buffers([], writable=True),
        Pages.from_pointers([], [], pieces=2, keep=()),
    ):
        assert (len(pages), pages.page_bytes) == (0, 0)


@pytest.mark.parametrize(
    "buffer",
    [
        bytearray(64),
        mmap.mmap(-1, 64),
        array.array("d", [0.0] * 8),
        np.zeros((4, 4), np.float32),
        memoryview(bytearray(128))[64:],
    ],
)
def test_sizes_are_in_bytes_and_addresses_point_at_the_memory(buffer: Any) -> None:
    pages = Pages.from_buffers([buffer], writable=True)
    assert pages.page_bytes == 64
    expected = np.frombuffer(memoryview(buffer).cast("B"), np.uint8)
    assert pages.addresses[0, 0] == expected.__array_interface__["data"][0]


def test_pages_keep_their_memory_alive() -> None:
    class Memory(np.ndarray):
        pass

    owner = np.zeros(64, np.uint8).view(Memory)
    alive = weakref.ref(owner)
    pages = Pages.from_buffers([owner], writable=True)
    part = pages[0:1]
    del owner, pages
    gc.collect()
    assert alive() is not None
    del part
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize(
    ("pointers", "sizes", "pieces", "message"),
    [
        ([4096], [8, 8], 1, "1 pointers, 2 sizes"),
        ([4096, 8192, 12288], [8] * 3, 2, "2 pieces"),
        ([4096], [8], 0, "0 pieces"),
        ([0], [8], 1, "address 0"),
        ([4096], [0], 1, "empty"),
        ([4096, 8192], [8, 9], 1, "different sizes"),
        ([4096, 4100], [8, 8], 1, "overlap"),
        ([4096, 4100], [8, 8], 2, "overlap"),
    ],
)
def test_pointers_are_checked_before_anything_follows_them(
    pointers: list[int], sizes: list[int], pieces: int, message: str
) -> None:
    with pytest.raises(InvalidBuffer, match=message):
        Pages.from_pointers(pointers, sizes, pieces=pieces, keep=())


@pytest.mark.parametrize(
    ("pointers", "sizes"), [([-1], [8]), ([1 << 64], [8]), ([4096], [-8]), (["x"], [8])]
)
def test_pointers_that_are_no_addresses_are_refused(pointers: list[Any], sizes: list[int]) -> None:
    with pytest.raises(InvalidBuffer):
        Pages.from_pointers(pointers, sizes, pieces=1, keep=())


def test_memory_that_runs_past_the_address_space_is_refused() -> None:
    top = (1 << 64) - 4
    with pytest.raises(InvalidBuffer):
        Pages.from_pointers([top, 4096], [8, 8], pieces=1, keep=())
