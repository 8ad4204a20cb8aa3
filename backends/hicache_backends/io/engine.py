"""What an I/O engine is: every operation of a batch in one call, checksums included.

A page's checksum is 64 bits, low half CRC-32C(digest ‖ first half of the page), high half
CRC-32C(digest ‖ second half); the first half has `page_bytes // 2` bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.pages import Pages

MAX_TRANSFER_BYTES = 16 << 20
"""Neighbouring pages are merged into transfers of at most this many bytes."""


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """One read a page: `pages[i]` from `offsets[i]` of `fds[i]`; neighbours in a file may merge.

    fds: int32; offsets: int64, bytes; digests: packed, 16 bytes a page, seeds of the checksums.
    """

    fds: NDArray[np.int32]
    offsets: NDArray[np.int64]
    pages: Pages
    digests: bytes


@dataclass(frozen=True, slots=True)
class RecordRuns:
    """Ranges of index files, each of which goes out as one write.

    `addresses`: memory that holds what the file holds in that range; the batch's records are put
    in there first. Every record of the batch lies in exactly one run. Nobody else touches the
    memory during the call. fds: int32; offsets: int64; addresses: uint64; sizes: uint64, bytes.
    """

    fds: NDArray[np.int32]
    offsets: NDArray[np.int64]
    addresses: NDArray[np.uint64]
    sizes: NDArray[np.uint64]
    keep: tuple[object, ...] = ()


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """One write a page, then its record.

    In order, for the batch as a whole: the records at `record_offsets` are overwritten with
    zeros (so that no old record names a slot that is being rewritten), the page data is
    written, then each page's 64-byte record. `records` holds the records with the checksum and
    record CRC still empty: the engine fills both in (see `segment/format.py`), and skips the
    record of a page whose data failed. `record_fds[i] < 0`: that page has no record.
    `was_used[i]`: False where the record is known to be zeros already.

    With `runs` a run that holds a record to be voided, or to be written, is written whole, once
    each; otherwise neighbouring records are. A page whose part of a run was not written fails, and
    in the memory of the runs the record of a page that failed is zeros.

    `padded_bytes`: 0, or how many bytes each page is written as, zeros after its own; a hint: an
    engine that cannot do it at no cost writes the page alone.
    """

    fds: NDArray[np.int32]
    offsets: NDArray[np.int64]
    pages: Pages
    digests: bytes
    record_fds: NDArray[np.int32]
    record_offsets: NDArray[np.int64]
    records: bytearray
    was_used: NDArray[np.bool_]
    runs: RecordRuns | None = None
    padded_bytes: int = 0


@dataclass(frozen=True, slots=True)
class IoResult:
    """One entry a page. results: int64, bytes moved, or -errno (-ETIMEDOUT: not begun before the
    deadline; a short transfer at the end of a file gives its short count). checksums: uint64, of
    the bytes moved; undefined where the result is not the page's size."""

    results: NDArray[np.int64]
    checksums: NDArray[np.uint64]


class Engine(ABC):
    """Moves batches. Stateless but for its settings; safe to use from several threads."""

    name: str

    @abstractmethod
    def read(self, batch: ReadBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        """Read a batch. `threads`: 1 suits the page cache, 8 O_DIRECT."""

    @abstractmethod
    def write(self, batch: WriteBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        """Write a batch and its records, as `WriteBatch` says."""

    @abstractmethod
    def checksum(self, pages: Pages, digests: bytes) -> NDArray[np.uint64]:
        """The checksum of each page in memory."""

    @abstractmethod
    def copy(self, source: Pages, target: Pages) -> None:
        """Copy page by page; the piece sizes of the two may differ, the page sizes not."""

    def copy_and_sum(self, source: Pages, target: Pages, digests: bytes) -> NDArray[np.uint64]:
        """`copy`, and the checksum of each page as it was copied; an engine may do it in one go."""
        self.copy(source, target)
        return self.checksum(target, digests)
