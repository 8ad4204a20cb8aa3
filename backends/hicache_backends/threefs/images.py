"""What the index files of this process's segments hold, so that a batch goes out as one write.

Every write to a part of a chunk has 3FS copy the whole chunk. So the records of a batch are not
written one by one: the range from the first to the last goes out at once, with what lies between.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import RecordRuns
from hicache_backends.segment.format import RECORD_BYTES
from hicache_backends.segment.segment import Segment

_UNIT = 4096
"""Ranges begin and end at multiples of this."""


def index_bytes(slots: int) -> int:
    """Size of the index file of so many slots."""
    return -(-slots * RECORD_BYTES // _UNIT) * _UNIT


class IndexImage:
    """One index file in memory. `inodes`: of the segment's two files. `unsure`: the file may hold
    something else, and is to be written whole."""

    def __init__(self, slots: int, inodes: frozenset[int]) -> None:
        self.memory = mmap.mmap(-1, index_bytes(slots))
        self.inodes = inodes
        self.unsure = False
        self.lock = threading.Lock()
        view = np.frombuffer(self.memory, np.uint8)
        self.address: int = view.__array_interface__["data"][0]

    def span(self, slots: Iterable[int]) -> tuple[int, int]:
        """Start and end, in bytes, of what has to be written for these records."""
        if self.unsure:
            return 0, len(self.memory)
        ordered = [*slots]
        start = min(ordered) * RECORD_BYTES // _UNIT * _UNIT
        return start, index_bytes(max(ordered) + 1)


@dataclass(frozen=True, slots=True)
class _Place:
    """The records of one call in one segment."""

    segment: Segment
    fd: int
    slots: list[int]


class IndexImages:
    """The images of a store's segments. A segment's records are written by one call at a time."""

    def __init__(self) -> None:
        self._images: dict[tuple[str, int], IndexImage] = {}

    def add(self, directory: str, number: int, image: IndexImage) -> None:
        """A segment was made."""
        self._images[directory, number] = image

    def drop(self, directory: str, number: int) -> None:
        """A segment is gone."""
        self._images.pop((directory, number), None)

    def of(self, segment: Segment) -> IndexImage | None:
        """None for a segment that is not this process's, or gone."""
        return self._images.get((segment.directory, segment.number))

    @contextlib.contextmanager
    def recording(
        self, places: Sequence[tuple[Segment, int]], fds: Sequence[int], deadline: Deadline
    ) -> Iterator[RecordRuns]:
        """The runs for records in these slots of segments; until the end no other call writes
        records there, and by then it is to be known how `unsure` they are. Raises TimeoutError."""
        by_segment: dict[Segment, _Place] = {}
        for (segment, slot), fd in zip(places, fds, strict=True):
            by_segment.setdefault(segment, _Place(segment, fd, [])).slots.append(slot)
        ordered = sorted(by_segment.values(), key=lambda place: place.segment.number)
        with contextlib.ExitStack() as stack:
            pairs = []
            for place in ordered:
                image = self.of(place.segment)
                if image is None or place.fd < 0:
                    continue  # it was given up meanwhile, or cannot be opened: no record is written
                _take(image.lock, deadline)
                stack.callback(image.lock.release)
                pairs.append((place, image))
            runs = _runs(pairs)
            for _, image in pairs:
                image.unsure = True  # until it is known how that went
            yield runs


def _take(lock: threading.Lock, deadline: Deadline) -> None:
    if not lock.acquire(timeout=deadline.remaining_ms() / 1000):
        raise TimeoutError(errno.ETIMEDOUT, "another call is writing to the segment")


def _runs(pairs: Sequence[tuple[_Place, IndexImage]]) -> RecordRuns:
    spans = [image.span(place.slots) for place, image in pairs]
    images = [image for _, image in pairs]
    return RecordRuns(
        np.array([place.fd for place, _ in pairs], np.int32),
        np.array([start for start, _ in spans], np.int64),
        np.array([i.address + s[0] for i, s in zip(images, spans, strict=True)], np.uint64),
        np.array([end - start for start, end in spans], np.uint64),
        tuple(images),
    )
