"""Batches of pages for the tests of the engines."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.io.checksums import seal_records
from hicache_backends.io.engine import ReadBatch, RecordRuns, WriteBatch
from hicache_backends.pages import Pages
from hicache_backends.segment.format import RECORD

SOON = 20_000.0


def soon() -> Deadline:
    return Deadline.after_ms(SOON)


def digests(count: int) -> bytes:
    return b"".join(hashlib.md5(b"%d" % i).digest() for i in range(count))  # noqa: S324 - a filler


def memory(
    count: int, piece_sizes: Sequence[int], fill: int = 0xA5
) -> tuple[NDArray[np.uint8], Pages]:
    """One block of memory, and pages over it whose pieces lie apart from each other."""
    gap = 16
    page_bytes = sum(piece_sizes) + gap * len(piece_sizes)
    block = np.full(count * page_bytes + 1, fill, np.uint8)
    base = int(block.__array_interface__["data"][0])
    starts = np.cumsum([0, *(size + gap for size in piece_sizes[:-1])])
    addresses = base + np.arange(count)[:, None] * page_bytes + starts[None, :]
    sizes = np.tile(np.array(piece_sizes, np.uint64), (count, 1))
    pages = Pages.from_pointers(
        addresses.ravel().astype(np.uint64), sizes.ravel(), pieces=len(piece_sizes), keep=(block,)
    )
    return block, pages


def contents(block: NDArray[np.uint8], pages: Pages) -> list[bytes]:
    """What each page holds, its pieces joined."""
    base = int(block.__array_interface__["data"][0])
    return [
        b"".join(
            block[int(a) - base : int(a) - base + int(s)].tobytes()
            for a, s in zip(row_a, row_s, strict=True)
        )
        for row_a, row_s in zip(pages.addresses, pages.sizes, strict=True)
    ]


def read_batch(fds: Sequence[int], offsets: Sequence[int], pages: Pages) -> ReadBatch:
    return ReadBatch(
        np.array(fds, np.int32), np.array(offsets, np.int64), pages, digests(len(pages))
    )


def write_batch(
    fd: int,
    offsets: Sequence[int],
    pages: Pages,
    *,
    index_fd: int = -1,
    slots: Sequence[int] | None = None,
    was_used: Sequence[bool] | None = None,
) -> WriteBatch:
    """Pages to `offsets` of `fd`; their records to `slots` of `index_fd`."""
    count = len(pages)
    names = digests(count)
    records = np.zeros(count, RECORD)
    records["digest"] = np.frombuffer(names, "V16")
    records["generation"] = np.arange(count) + 7
    records["bytes"] = pages.page_bytes
    return WriteBatch(
        np.full(count, fd, np.int32),
        np.array(offsets, np.int64),
        pages,
        names,
        np.full(count, index_fd, np.int32),
        np.array(slots if slots is not None else range(count), np.int64) * 64,
        bytearray(records.tobytes()),
        np.array(was_used if was_used is not None else [False] * count, np.bool_),
    )


def with_runs(batch: WriteBatch, image: NDArray[np.uint8], run_bytes: int) -> WriteBatch:
    """The batch, its index file held in `image` and cut into runs of this size."""
    starts = np.arange(0, image.size, run_bytes)
    base = int(image.__array_interface__["data"][0])
    runs = RecordRuns(
        np.full(len(starts), batch.record_fds.max(initial=-1), np.int32),
        starts.astype(np.int64),
        (base + starts).astype(np.uint64),
        np.minimum(run_bytes, image.size - starts).astype(np.uint64),
        (image,),
    )
    return dataclasses.replace(batch, records=bytearray(batch.records), runs=runs)


def old_index(count: int, used: Sequence[int]) -> NDArray[np.uint8]:
    """An index file of `count` slots, in which some have a record."""
    records = np.zeros(count, RECORD)
    records["generation"][list(used)] = 1
    records["bytes"][list(used)] = 4096
    packed = bytearray(records.tobytes())
    seal_records(packed, np.array(used, np.intp), np.zeros(count, np.uint64))
    return np.frombuffer(packed, np.uint8)


def checksum(digest: bytes, page: bytes) -> int:
    """The definition, word for word, by an independent implementation of CRC-32C."""
    import crc32c

    half = len(page) // 2
    low, high = crc32c.crc32c(digest + page[:half]), crc32c.crc32c(digest + page[half:])
    return high << 32 | low


def checksums(pages: Sequence[bytes]) -> list[int]:
    names = digests(len(pages))
    return [checksum(names[16 * i : 16 * i + 16], page) for i, page in enumerate(pages)]
