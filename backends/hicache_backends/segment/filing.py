"""How the files of segments are made, opened and recorded in, on one kind of file system."""

from __future__ import annotations

import contextlib
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import RecordRuns
from hicache_backends.segment.descriptors import Descriptors
from hicache_backends.segment.format import RECORD_BYTES
from hicache_backends.segment.local_medium import LocalMedium
from hicache_backends.segment.medium import Limits, Medium
from hicache_backends.segment.segment import (
    Segment,
    create_segment,
    delete_segment,
    direct_alignment,
    read_segment,
    slot_bytes,
    zero_records,
)

_T = TypeVar("_T")


class Contents(NamedTuple):
    """What a segment holds: how many slots it has, which of them hold a page, their records."""

    total: int
    slots: NDArray[np.int32]
    records: NDArray[np.void]


class Filing(ABC):
    """The files of one namespace's segments. `slot_bytes`: from one slot of a data file to the
    next. `index_flags`: index files are opened with these, too. `lost`: the errnos of a read that
    an own page does not come back from; any other failure may pass. `passing`: errnos after which
    files are opened anew, and which say nothing against the medium. `bad_place`: errnos of an
    operation whose place is not used again. `max_slots`: of a segment.
    `padded_bytes`: how many bytes a page is written as, 0: its own.

    Methods raise OSError.
    """

    index_flags = 0
    lost = frozenset((errno.EIO, errno.ENODATA, errno.EUCLEAN, errno.EBADMSG, errno.ENOENT))
    passing: frozenset[int] = frozenset()
    bad_place = frozenset((errno.EIO, errno.ENODATA, errno.EILSEQ))
    max_slots = 1 << 31
    padded_bytes = 0
    io_mode = ""
    """What moves the pages, where neither the page cache nor O_DIRECT is meant."""

    def __init__(self, page_bytes: int, slot: int) -> None:
        self.page_bytes = page_bytes
        self.slot_bytes = slot

    def stored_bytes(self, pages: int) -> int:
        """Bytes that so many pages take of a capacity, records included."""
        return pages * (self.slot_bytes + RECORD_BYTES)

    @abstractmethod
    def open_medium(self, root: str, deadline: Deadline) -> Medium:
        """Raises StorageUnavailable and IdentityMismatch, too."""

    @abstractmethod
    def descriptors(self) -> Descriptors:
        """What files are opened with; called once."""

    @abstractmethod
    def alignment(self, directory: str) -> int:
        """What O_DIRECT asks of addresses and sizes, in bytes; 0: it is not to be used."""

    @abstractmethod
    def create(self, directory: str, number: int, slots: int) -> None:
        """Both files in their full size; nothing is left behind where that fails."""

    @abstractmethod
    def delete(self, directory: str, number: int) -> None:
        """Remove both files, if they are there."""

    def remove_store(self, directory: str) -> None:
        """A store that was taken over has no segment left."""
        return

    @abstractmethod
    def read(self, directory: str, number: int, *, own: bool = True) -> Contents:
        """What a segment holds. Torn records, those of other pages, and those of slots beyond the
        end of a file are passed over. `own`: its records are going to be changed."""

    @abstractmethod
    def zero(self, segment: Segment, slots: Sequence[int], deadline: Deadline) -> None:
        """Wipe the records of these slots, given in order. ETIMEDOUT at the deadline where the
        file system may hang."""

    def spend(self, segment: Segment, slots: Sequence[int], deadline: Deadline) -> None:
        """Wipe the records of these slots, given in order, and give their space back: they are not
        used again."""
        self.zero(segment, slots, deadline)

    def recording(
        self, places: Sequence[tuple[Segment, int]], index_fds: Sequence[int], deadline: Deadline
    ) -> AbstractContextManager[RecordRuns | None]:
        """Around the write of pages in these slots of segments: how their records go out. ETIMEDOUT
        where that has to wait for other calls until the deadline, or such a call left one of the
        segments in doubt."""
        return contextlib.nullcontext()

    def settle(self, segments: Sequence[Segment], results: Sequence[int]) -> None:
        """How the write of each page went: bytes, or -errno. Inside `recording`."""
        return

    def in_doubt(self) -> frozenset[Segment]:
        """Segments to which a write that was given up may still happen: nothing new goes there."""
        return frozenset()

    def run(self, work: Callable[[], _T], deadline: Deadline) -> _T:
        """Do what may wait for the file system. ETIMEDOUT at the deadline, where the file system
        may hang; it is then done later."""
        return work()

    def mark_used(self, directory: str) -> None:
        """Keep a store of another process from counting as long unused."""
        with contextlib.suppress(OSError):
            os.utime(f"{directory}/owner", follow_symlinks=False)


class PlainFiling(Filing):
    """A local file system: space is allocated up front, records are written where they belong."""

    def __init__(self, page_bytes: int, limits: Limits, *, create: bool = True) -> None:
        super().__init__(page_bytes, slot_bytes(page_bytes))
        self._limits = limits
        self._create = create

    def open_medium(self, root: str, deadline: Deadline) -> Medium:
        return LocalMedium.open(root, self._limits, create=self._create, deadline=deadline)

    def descriptors(self) -> Descriptors:
        return Descriptors()

    def alignment(self, directory: str) -> int:
        return direct_alignment(directory)

    def create(self, directory: str, number: int, slots: int) -> None:
        create_segment(directory, number, slots, self.page_bytes)

    def delete(self, directory: str, number: int) -> None:
        delete_segment(directory, number)

    def read(self, directory: str, number: int, *, own: bool = True) -> Contents:
        return Contents(*read_segment(directory, number, self.page_bytes))

    def zero(self, segment: Segment, slots: Sequence[int], deadline: Deadline) -> None:
        zero_records(segment, slots)
