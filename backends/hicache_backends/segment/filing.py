"""How the files of segments are made, opened and recorded in, on one kind of file system."""

from __future__ import annotations

import errno
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
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


class Contents(NamedTuple):
    """What a segment holds: how many slots it has, which of them hold a page, their records."""

    total: int
    slots: NDArray[np.int32]
    records: NDArray[np.void]


class Filing(ABC):
    """The files of one namespace's segments. `slot_bytes`: from one slot of a data file to the
    next. `index_flags`: index files are opened with these, too. `lost`: the errnos of a read that
    an own page does not come back from; any other failure may pass. `passing`: errnos after which
    files are opened anew, and which say nothing against the medium. `max_slots`: of a segment.
    `padded_bytes`: how many bytes a page is written as, 0: its own.

    Methods raise OSError.
    """

    index_flags = 0
    lost = frozenset((errno.EIO, errno.ENODATA, errno.EUCLEAN, errno.EBADMSG, errno.ENOENT))
    passing: frozenset[int] = frozenset()
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

    @abstractmethod
    def read(self, directory: str, number: int) -> Contents:
        """What a segment holds. Torn records, those of other pages, and those of slots beyond the
        end of a file are passed over."""

    @abstractmethod
    def zero(self, segment: Segment, slots: Sequence[int]) -> None:
        """Wipe the records of these slots, given in order."""

    def is_in_doubt(self, segment: Segment) -> bool:
        """Whether a write to the segment that was given up may still happen."""
        return False


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

    def read(self, directory: str, number: int) -> Contents:
        return Contents(*read_segment(directory, number, self.page_bytes))

    def zero(self, segment: Segment, slots: Sequence[int]) -> None:
        zero_records(segment, slots)
