"""Index records in Python: which writes bring those of a batch to their files."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hicache_backends.io.checksums import seal_records
from hicache_backends.io.engine import RecordRuns, WriteBatch
from hicache_backends.io.plan import plan_runs
from hicache_backends.segment.format import RECORD_BYTES


@dataclass(frozen=True, slots=True)
class RecordWrite:
    """One write of an index file. `rows`: the pages whose records, or zeros for them, are in it."""

    fd: int
    offset: int
    data: memoryview
    rows: list[int]


class BatchRecords:
    """The records of a batch, and what became of its pages (`results`, as `IoResult` has them).

    Raises ValueError where a record does not lie in exactly one run.
    """

    def __init__(self, batch: WriteBatch, results: NDArray[np.int64], max_bytes: int) -> None:
        self._batch, self._results = batch, results
        self._max_bytes = max_bytes
        self._has_record = np.asarray(batch.record_fds) >= 0
        if batch.runs is not None:
            self._run_of = self._find_runs(batch.runs)

    def void_old(self) -> list[RecordWrite]:
        """Zeros over the records in use of pages that have not failed."""
        old = self._has_record & np.asarray(self._batch.was_used) & (self._results >= 0)
        return self._writes(np.flatnonzero(old), bytes(len(self._batch.records)))

    def put_new(self, checksums: NDArray[np.uint64]) -> list[RecordWrite]:
        """The records of pages that have not failed, completed."""
        done = np.flatnonzero(self._has_record & (self._results >= 0))
        seal_records(self._batch.records, done, checksums)
        return self._writes(done, self._batch.records)

    def not_written(self, write: RecordWrite, start: int, end: int, number: int) -> None:
        """The bytes from `start` to `end` were not: the pages of the records there fail with this
        errno, and zeros take the place of the records."""
        for row in write.rows:
            at = int(self._batch.record_offsets[row]) - write.offset
            if at < end and at + RECORD_BYTES > start and self._results[row] >= 0:
                self._results[row] = -number
                write.data[at : at + RECORD_BYTES] = bytes(RECORD_BYTES)

    def _find_runs(self, runs: RecordRuns) -> NDArray[np.intp]:
        counts = {len(column) for column in (runs.fds, runs.offsets, runs.addresses, runs.sizes)}
        if len(counts) > 1:
            raise ValueError("runs: their arrays have different lengths")
        if (runs.offsets < 0).any() or not (runs.addresses.all() and runs.sizes.all()):
            raise ValueError("runs: one is empty, at address 0 or before its file")
        offsets = np.asarray(self._batch.record_offsets)[:, None]
        inside = (
            (np.asarray(self._batch.record_fds)[:, None] == runs.fds)
            & (offsets >= runs.offsets)
            & (offsets + RECORD_BYTES <= runs.offsets + runs.sizes.astype(np.int64))
        )
        if (inside.sum(axis=1)[self._has_record] != 1).any():
            raise ValueError("runs: a record does not lie in exactly one of them")
        return inside.argmax(axis=1) if counts != {0} else np.zeros(len(offsets), np.intp)

    def _writes(self, rows: NDArray[np.intp], records: bytes | bytearray) -> list[RecordWrite]:
        runs = self._batch.runs
        writes = self._neighbours(rows) if runs is None else self._given(runs, rows)
        for write in writes:
            for row in write.rows:
                at = int(self._batch.record_offsets[row]) - write.offset
                record = records[row * RECORD_BYTES : (row + 1) * RECORD_BYTES]
                write.data[at : at + RECORD_BYTES] = record
        return writes

    def _neighbours(self, rows: NDArray[np.intp]) -> list[RecordWrite]:
        fds, offsets = self._batch.record_fds, self._batch.record_offsets
        return [
            RecordWrite(
                int(fds[run[0]]),
                int(offsets[run[0]]),
                memoryview(bytearray(len(run) * RECORD_BYTES)),
                run,
            )
            for run in plan_runs(fds, offsets, rows, RECORD_BYTES, self._max_bytes)
        ]

    def _given(self, runs: RecordRuns, rows: NDArray[np.intp]) -> list[RecordWrite]:
        run_of = self._run_of[rows]
        return [
            RecordWrite(
                int(runs.fds[run]),
                int(runs.offsets[run]),
                _memory(int(runs.addresses[run]), int(runs.sizes[run])),
                rows[run_of == run].tolist(),
            )
            for run in np.unique(run_of).tolist()
        ]


def _memory(address: int, size: int) -> memoryview:
    return memoryview((ctypes.c_char * size).from_address(address)).cast("B")
