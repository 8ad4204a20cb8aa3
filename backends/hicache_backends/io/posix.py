"""The engine in Python: the same values as the one in C, for where there is no compiler.

It merges neighbours as the other does, but gives up the GIL at every transfer and checksum, so
that beside a busy Python thread it is many times slower.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.io.checksums import page_checksums
from hicache_backends.io.engine import (
    MAX_TRANSFER_BYTES,
    Engine,
    IoResult,
    ReadBatch,
    WriteBatch,
)
from hicache_backends.io.plan import plan_runs
from hicache_backends.io.records import BatchRecords, RecordWrite
from hicache_backends.pages import Pages
from hicache_backends.segment.format import RECORD_BYTES

_MAX_PIECES = 1024  # of one call, a limit of the kernel
_SECTOR_BYTES = 512
_MAX_PADDED = 1 << 40

_Move = Callable[[int, Sequence[memoryview], int], int]


class PosixEngine(Engine):
    """Raises ValueError for arrays whose lengths do not fit together; nothing was moved then."""

    name = "posix"

    def __init__(self, *, max_transfer_bytes: int = MAX_TRANSFER_BYTES) -> None:
        self._max_bytes = max_transfer_bytes & ~4095  # direct I/O keeps its alignment

    def read(self, batch: ReadBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        check_batch(batch, threads)
        results = np.zeros(len(batch.pages), np.int64)
        self._move(batch, os.preadv, results, deadline, threads)
        return IoResult(results, _sums_where_moved(batch, results))

    def write(self, batch: WriteBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        check_batch(batch, threads)
        results = np.zeros(len(batch.pages), np.int64)
        records = BatchRecords(batch, results, self._max_bytes)
        _write_records(records, records.void_old(), deadline)
        self._move(batch, os.pwritev, results, deadline, threads)
        sums = _sums_where_moved(batch, results)
        _write_records(records, records.put_new(sums), None)
        return IoResult(results, sums)

    def checksum(self, pages: Pages, digests: bytes) -> NDArray[np.uint64]:
        if len(digests) != DIGEST_BYTES * len(pages):
            raise ValueError(f"digests: {len(digests)} bytes for {len(pages)} pages")
        return page_checksums(piece_views(pages), digests)

    def copy(self, source: Pages, target: Pages) -> None:
        if len(source) != len(target) or source.page_bytes != target.page_bytes:
            raise ValueError("the two sides have other numbers or sizes of pages")
        for from_pieces, to_pieces in zip(piece_views(source), piece_views(target), strict=True):
            data = b"".join(from_pieces)
            at = 0
            for piece in to_pieces:
                piece[:] = data[at : at + len(piece)]
                at += len(piece)

    def _move(
        self,
        batch: ReadBatch | WriteBatch,
        move: _Move,
        results: NDArray[np.int64],
        deadline: Deadline,
        threads: int,
    ) -> None:
        which = np.flatnonzero(results >= 0)
        share = max(1 << 20, len(which) * batch.pages.page_bytes // threads // 4)
        runs = plan_runs(
            batch.fds, batch.offsets, which, batch.pages.page_bytes, min(share, self._max_bytes)
        )
        views = piece_views(batch.pages)
        work = [
            _Run(int(batch.fds[run[0]]), int(batch.offsets[run[0]]), run, views, results)
            for run in runs
        ]
        if threads == 1 or len(work) < 2:
            for one in work:
                one.move(move, self._max_bytes, deadline)
            return
        with ThreadPoolExecutor(min(threads, len(work))) as pool:
            list(pool.map(lambda one: one.move(move, self._max_bytes, deadline), work))


def check_batch(batch: ReadBatch | WriteBatch, threads: int) -> None:
    """Raises ValueError where the lengths of a batch's arrays do not fit together."""
    count = len(batch.pages)
    lengths = {
        "fds": len(batch.fds),
        "offsets": len(batch.offsets),
        "digests": len(batch.digests) / DIGEST_BYTES,
    }
    if isinstance(batch, WriteBatch):
        lengths["record_fds"] = len(batch.record_fds)
        lengths["record_offsets"] = len(batch.record_offsets)
        lengths["was_used"] = len(batch.was_used)
        lengths["records"] = len(batch.records) / RECORD_BYTES
        if batch.padded_bytes and not batch.pages.page_bytes <= batch.padded_bytes <= _MAX_PADDED:
            raise ValueError(f"padded_bytes: {batch.padded_bytes}")
    for name, length in lengths.items():
        if length != count:
            raise ValueError(f"{name}: {length} items for {count} pages")
    if count and int(np.min(batch.offsets)) < 0:
        raise ValueError("offsets: one is negative")
    if threads < 1:
        raise ValueError(f"threads {threads}, at least 1")


def piece_views(pages: Pages) -> list[list[memoryview]]:
    """The memory of each piece of each page."""
    return [
        [
            memoryview((ctypes.c_char * size).from_address(address)).cast("B")
            for address, size in zip(addresses, sizes, strict=True)
        ]
        for addresses, sizes in zip(pages.addresses.tolist(), pages.sizes.tolist(), strict=True)
    ]


@dataclass
class _Run:
    fd: int
    offset: int
    indices: list[int]
    views: list[list[memoryview]]
    results: NDArray[np.int64]
    page: int = 0  # position in `indices`
    in_page: int = 0
    one_page: bool = False

    def move(self, move: _Move, max_bytes: int, deadline: Deadline) -> None:
        """Move every page, or note why not."""
        size = sum(map(len, self.views[self.indices[0]]))
        while self.page < len(self.indices):
            if deadline.passed:
                self._give_up(-errno.ETIMEDOUT, -errno.ETIMEDOUT)
                return
            pieces = self._gather(max_bytes)
            try:
                moved = move(self.fd, pieces, self.offset + self.page * size + self.in_page)
            except OSError as error:
                self._failed(error.errno or errno.EIO, sum(map(len, pieces)) > size - self.in_page)
                continue
            if not moved and move is os.pwritev:
                self._failed(errno.EIO, False)
                continue
            self._advance(moved, size)
            if not moved or (moved % _SECTOR_BYTES and _is_direct(self.fd)):
                self._give_up(self.in_page, 0)  # the end of the file

    def _gather(self, max_bytes: int) -> list[memoryview]:
        stop = self.page + 1 if self.one_page else len(self.indices)
        skip, left = self.in_page, max_bytes
        pieces: list[memoryview] = []
        for page in self.indices[self.page : stop]:
            for view in self.views[page]:
                part = view[skip : skip + left]
                skip = max(0, skip - len(view))
                if len(part):
                    pieces.append(part)
                    left -= len(part)
                if not left or len(pieces) == _MAX_PIECES:
                    return pieces
        return pieces

    def _advance(self, moved: int, size: int) -> None:
        self.in_page += moved
        while self.page < len(self.indices) and self.in_page >= size:
            self.results[self.indices[self.page]] = size
            self.page += 1
            self.in_page -= size

    def _failed(self, number: int, spans_pages: bool) -> None:
        if spans_pages and not self.one_page:
            self.one_page = True  # find out which of the pages it was
            return
        self.results[self.indices[self.page]] = -number
        self.page += 1
        self.in_page = 0

    def _give_up(self, first: int, rest: int) -> None:
        left = self.indices[self.page :]
        self.results[left] = rest
        self.results[left[:1]] = first
        self.page = len(self.indices)


def _is_direct(fd: int) -> bool:
    return bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)


def _sums_where_moved(batch: ReadBatch | WriteBatch, results: Any) -> NDArray[np.uint64]:
    sums = np.zeros(len(results), np.uint64)
    done = np.flatnonzero(results == batch.pages.page_bytes)
    digests = np.frombuffer(batch.digests, np.uint8).reshape(-1, DIGEST_BYTES)[done].tobytes()
    sums[done] = page_checksums(piece_views(batch.pages[done]), digests)
    return sums


def _write_records(
    records: BatchRecords, writes: list[RecordWrite], deadline: Deadline | None
) -> None:
    """Without a deadline: pages that were written deserve their records."""
    for write in writes:
        written, number = 0, errno.ETIMEDOUT
        try:
            while written < len(write.data) and not (deadline and deadline.passed):
                written += os.pwrite(write.fd, write.data[written:], write.offset + written)
        except OSError as error:
            number = error.errno or errno.EIO
        records.not_written(write, written, len(write.data), number)
