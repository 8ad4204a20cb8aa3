"""Copies between staging blocks and pages, which are checksummed in the same pass."""

from __future__ import annotations

import dataclasses
import os

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_backends.pages import Pages
from tests.backends.io.batches import checksums, contents, memory, read_batch, soon, write_batch
from tests.backends.usrbio.plain_ring import PlainRing, Serving

PAGE = 4096
FILE_BYTES = 64 * PAGE


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 9000), min_size=1, max_size=3),
    start=st.integers(0, 127),
    for_read=st.booleans(),
)
def test_pages_of_any_size_lie_anywhere(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], start: int, for_read: bool
) -> None:
    size = sum(sizes)
    path = tmp_path_factory.mktemp("copies") / "data"
    path.write_bytes(np.random.default_rng(7).bytes(FILE_BYTES))
    fd = os.open(path, os.O_RDWR)
    ring = PlainRing(os.fstat(fd).st_dev, block_bytes=32 << 10)
    block, spread = memory(3, sizes)
    moved = np.full(block.size + 256, 0xA5, np.uint8)
    base = int(moved.__array_interface__["data"][0])
    base += -base % 64 + start  # where lines of the cache begin matters
    addresses = spread.addresses - spread.addresses.min() + np.uint64(base)
    pages = dataclasses.replace(spread, addresses=addresses, keep=(moved,))
    offsets = [0, 20 * PAGE + 3, 40 * PAGE]
    expected = [os.pread(fd, size, offset) for offset in offsets]
    if for_read:
        with Serving(ring, [fd]):
            result = ring.read(read_batch([fd] * 3, offsets, pages), soon())
    else:
        for row, page in enumerate(expected):
            put(moved, pages, row, page)
        os.pwrite(fd, bytes(FILE_BYTES), 0)
        with Serving(ring, [fd]) as serving:
            serving.for_read = False
            result = ring.write(write_batch(fd, offsets, pages), soon())
        assert [os.pread(fd, size, offset) for offset in offsets] == expected
    os.close(fd)
    assert result.results.tolist() == [size] * 3
    assert result.checksums.tolist() == checksums(expected)
    assert contents(moved, pages) == expected
    for row in range(3):
        put(moved, pages, row, b"\xa5" * size)
    assert (moved == 0xA5).all()


def put(block: np.ndarray, pages: Pages, row: int, data: bytes) -> None:
    """Put a page's bytes into its pieces."""
    base = int(block.__array_interface__["data"][0])
    for address, size in zip(pages.addresses[row], pages.sizes[row], strict=True):
        at = int(address) - base
        block[at : at + int(size)] = np.frombuffer(data[: int(size)], np.uint8)
        data = data[int(size) :]
