"""Segments: a preallocated data file of equal slots, and an index file of one record a slot."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.io.engine import Engine, WriteBatch
from hicache_backends.io.select import open_engine
from hicache_backends.native_calls import valid_records
from hicache_backends.pages import Pages
from hicache_backends.segment.format import ALIGNMENT, RECORD, RECORD_BYTES
from hicache_backends.segment.plain import open_plain, plain_size, read_plain

_NEVER = Deadline((1 << 63) - 1)
"""A local file system lets go of nothing that was begun."""
_NAME = re.compile(r"seg-([0-9]{6,10})\.(?:data|index)")


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """One segment of a store. `volume`: which of the roots it lies on. `own`: of this process's
    store, so that it is written to as well. `sealed`: of a store that this process has taken over
    to read and to delete what is there, but never writes pages to."""

    volume: int
    store: bytes
    directory: str
    number: int
    slots: int
    own: bool = True
    sealed: bool = False

    @property
    def data_path(self) -> str:
        return data_path(self.directory, self.number)

    @property
    def index_path(self) -> str:
        return index_path(self.directory, self.number)


class SegmentTable:
    """The segments of a store; its slots are numbered through all of them."""

    def __init__(self) -> None:
        self._first_slots: list[int] = []
        self._segments: list[Segment] = []
        self.slots = 0

    def __len__(self) -> int:
        return len(self._segments)

    def __iter__(self) -> Iterator[Segment]:
        return iter(self._segments)

    def add(self, segment: Segment) -> int:
        """The number of the segment's first slot."""
        first = self.slots
        self._segments.append(segment)
        self._first_slots.append(first)
        self.slots += segment.slots
        return first

    def first_slot(self, segment: Segment) -> int:
        """The number of the segment's first slot."""
        return self._first_slots[self._segments.index(segment)]

    def place(self, slot: int) -> tuple[Segment, int]:
        """The segment of a slot, and which of the segment's slots it is."""
        at = bisect_right(self._first_slots, slot) - 1
        return self._segments[at], slot - self._first_slots[at]


def slot_bytes(page_bytes: int) -> int:
    """Bytes from one slot of a data file to the next."""
    return -(-page_bytes // ALIGNMENT) * ALIGNMENT


def stored_bytes(pages: int, page_bytes: int) -> int:
    """Bytes that so many pages take of a capacity, records included."""
    return pages * (slot_bytes(page_bytes) + RECORD_BYTES)


def data_path(directory: str, number: int) -> str:
    """Where a segment's pages lie."""
    return f"{directory}/seg-{number:06d}.data"


def index_path(directory: str, number: int) -> str:
    """Where a segment's records lie."""
    return f"{directory}/seg-{number:06d}.index"


def segment_files(directory: str) -> list[tuple[int, os.DirEntry[str]]]:
    """Segment number and entry of each segment file of a store; empty if the store is gone."""
    try:
        with os.scandir(directory) as entries:
            named = [(_NAME.fullmatch(entry.name), entry) for entry in entries]
    except FileNotFoundError:
        return []
    return [(int(name[1]), entry) for name, entry in named if name]


def create_segment(directory: str, number: int, slots: int, page_bytes: int) -> None:
    """Both files in their full size, so that a full medium shows here. Raises OSError, with
    nothing left behind."""
    new = os.O_CREAT | os.O_EXCL
    try:
        _resize(index_path(directory, number), slots * RECORD_BYTES, new)
        _resize(data_path(directory, number), slots * slot_bytes(page_bytes), new)
    except OSError:
        delete_segment(directory, number)
        raise


def delete_segment(directory: str, number: int) -> None:
    """Remove both files. Raises OSError, but not for a file that is gone already, or none."""
    for path in (data_path(directory, number), index_path(directory, number)):
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            Path(path).unlink()


def restore_segment(directory: str, number: int, slots: int, page_bytes: int) -> bool:
    """Give files that were cut their full size again; whether that was needed. Records whose
    pages were cut off are wiped. Raises OSError."""
    data, index = data_path(directory, number), index_path(directory, number)
    left = plain_size(data) // slot_bytes(page_bytes)
    whole = plain_size(index) >= slots * RECORD_BYTES
    if left >= slots and whole:
        return False
    _resize(index, slots * RECORD_BYTES)
    if left < slots:
        _zero(index, range(left, slots))
        _resize(data, slots * slot_bytes(page_bytes))
    return True


def read_segment(
    directory: str, number: int, page_bytes: int
) -> tuple[int, NDArray[np.int32], NDArray[np.void]]:
    """Slots of the segment, the slots that hold a page of this size, and their records.

    Torn and foreign records are passed over, and those of slots beyond the end of a file.
    Raises OSError.
    """
    slots = plain_size(data_path(directory, number)) // slot_bytes(page_bytes)
    raw = read_plain(index_path(directory, number), slots * RECORD_BYTES)
    count = len(raw) // RECORD_BYTES
    packed = memoryview(raw)[: count * RECORD_BYTES]
    records = np.frombuffer(packed, dtype=RECORD)
    used = np.flatnonzero(valid_records(packed) & (records["bytes"] == page_bytes))
    return count, used.astype(np.int32), records[used]


def zero_records(segment: Segment, slots: Sequence[int]) -> None:
    """Wipe the records of these slots in one call of the engine. Raises OSError."""
    count = len(slots)
    zeros = bytes(RECORD_BYTES)
    fd = open_plain(segment.index_path, os.O_RDWR)
    try:
        batch = WriteBatch(
            np.full(count, fd, np.int32),
            np.asarray(slots, np.int64) * RECORD_BYTES,
            Pages.from_buffers([zeros] * count, writable=False),
            bytes(DIGEST_BYTES * count),
            np.full(count, -1, np.int32),
            np.zeros(count, np.int64),
            bytearray(RECORD_BYTES * count),
            np.zeros(count, np.bool_),
        )
        results = _engine().write(batch, _NEVER).results
    finally:
        os.close(fd)
    for result in results[results != RECORD_BYTES][:1].tolist():
        raise OSError(-result or errno.EIO, os.strerror(-result or errno.EIO), segment.index_path)


@cache
def _engine() -> Engine:
    return open_engine()


def _zero(path: str, slots: range) -> None:
    fd = open_plain(path, os.O_RDWR)
    try:
        os.pwrite(fd, bytes(len(slots) * RECORD_BYTES), slots.start * RECORD_BYTES)
    finally:
        os.close(fd)


def _resize(path: str, size: int, flags: int = 0) -> None:
    """Give a file at least this size, with blocks behind it. Raises OSError."""
    fd = open_plain(path, os.O_RDWR | flags)
    try:
        os.posix_fallocate(fd, 0, size)
    finally:
        os.close(fd)


def direct_alignment(directory: str) -> int:
    """The alignment in bytes that O_DIRECT takes here, found by writing and reading a file: 512,
    4096, or 0 where it does not work. Raises OSError where nothing can be written at all."""
    path = f"{directory}/.probe-{os.getpid()}-{os.urandom(4).hex()}"
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    try:
        return next((n for n in (512, 4096) if _moves_directly(path, n)), 0)
    finally:
        Path(path).unlink(missing_ok=True)


def _moves_directly(path: str, alignment: int) -> bool:
    """Whether `alignment` bytes at an address and an offset of no more can be moved."""
    with mmap.mmap(-1, 2 * ALIGNMENT) as memory:
        piece = memoryview(memory)[alignment : 2 * alignment]
        try:
            fd = os.open(path, os.O_RDWR | os.O_DIRECT | os.O_CLOEXEC)
            try:
                piece[:] = os.urandom(alignment)
                written = bytes(piece)
                moved = os.pwritev(fd, [piece], alignment)
                piece[:] = bytes(alignment)
                return moved == os.preadv(fd, [piece], alignment) and piece == written
            finally:
                os.close(fd)
        except OSError:
            return False
        finally:
            piece.release()
