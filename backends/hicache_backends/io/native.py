"""The engine in C: a whole batch, checksums included, in one call that gives up the GIL once."""

from __future__ import annotations

import os

import numpy as np
from numpy.typing import NDArray

from hicache_backends import _native
from hicache_backends.deadline import Deadline
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.io.engine import (
    MAX_TRANSFER_BYTES,
    Engine,
    IoResult,
    ReadBatch,
    RecordRuns,
    WriteBatch,
)
from hicache_backends.pages import Pages

KEEP_GIL_BYTES = 1 << 20
"""A read of at most this many bytes is first tried in the page cache, the GIL kept."""


_MEMORY_THREADS = 4
"""Of a copy or a checksum of a whole batch: one does not take up the memory's bandwidth."""


class NativeEngine(Engine):
    """Raises ValueError for arrays whose lengths do not fit together; nothing was moved then."""

    name = "native"

    def __init__(
        self,
        *,
        max_transfer_bytes: int = MAX_TRANSFER_BYTES,
        keep_gil_bytes: int = KEEP_GIL_BYTES,
    ) -> None:
        self._max_transfer_bytes = max_transfer_bytes
        self._keep_gil_bytes = keep_gil_bytes
        self._threads = min(_MEMORY_THREADS, len(os.sched_getaffinity(0)))

    def read(self, batch: ReadBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        moved = _native.read_many(
            packed(batch.fds, np.int32),
            packed(batch.offsets, np.int64),
            packed_pieces(batch.pages),
            batch.pages.pieces,
            batch.digests,
            deadline.at_ns,
            threads,
            self._max_transfer_bytes,
            self._keep_gil_bytes,
        )
        return _io_result(moved)

    def write(self, batch: WriteBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        moved = _native.write_many(
            packed(batch.fds, np.int32),
            packed(batch.offsets, np.int64),
            packed_pieces(batch.pages),
            batch.pages.pieces,
            batch.digests,
            deadline.at_ns,
            threads,
            self._max_transfer_bytes,
            *packed_records(batch),
        )
        return _io_result(moved)

    def checksum(self, pages: Pages, digests: bytes) -> NDArray[np.uint64]:
        sums = _native.checksum_many(packed_pieces(pages), pages.pieces, digests, self._threads)
        return np.frombuffer(sums, np.uint64)

    def copy(self, source: Pages, target: Pages) -> None:
        self._copy(source, target, b"")

    def copy_and_sum(self, source: Pages, target: Pages, digests: bytes) -> NDArray[np.uint64]:
        if len(digests) != DIGEST_BYTES * len(target):
            raise ValueError(f"digests: {len(digests)} bytes for {len(target)} pages")
        return np.frombuffer(self._copy(source, target, digests), np.uint64)

    def _copy(self, source: Pages, target: Pages, digests: bytes) -> bytearray:
        return _native.copy_many(
            len(target),
            packed_pieces(source),
            source.pieces,
            packed_pieces(target),
            target.pieces,
            digests,
            self._threads,
        )


def packed(array: NDArray[np.generic], dtype: type[np.generic]) -> bytes:
    """The items back to back, in machine order."""
    return np.asarray(array, dtype=dtype).tobytes()


def packed_records(
    batch: WriteBatch,
) -> tuple[bytes, bytes, bytes, bytearray, tuple[bytes, bytes, bytes] | None]:
    """The records of a batch and their runs, as the extension takes them."""
    return (
        packed(batch.record_fds, np.int32),
        packed(batch.record_offsets, np.int64),
        packed(batch.was_used, np.bool_),
        batch.records,
        None if batch.runs is None else _packed_runs(batch.runs),
    )


def _packed_runs(runs: RecordRuns) -> tuple[bytes, bytes, bytes]:
    iov = np.stack([runs.addresses, runs.sizes], axis=-1)
    return packed(runs.fds, np.int32), packed(runs.offsets, np.int64), packed(iov, np.uint64)


def packed_pieces(pages: Pages) -> bytes:
    """An array of `struct iovec`: address and size of each piece of each page."""
    iov = np.empty((*pages.addresses.shape, 2), dtype=np.uint64)
    iov[..., 0] = pages.addresses
    iov[..., 1] = pages.sizes
    return iov.tobytes()


def _io_result(moved: tuple[bytearray, bytearray]) -> IoResult:
    return IoResult(np.frombuffer(moved[0], np.int64), np.frombuffer(moved[1], np.uint64))
