"""Pages in stores of other processes: found in the index of an unlocked store, or by location."""

from __future__ import annotations

import os
import struct
import time
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hicache_backends.segment.filing import Filing
from hicache_backends.segment.format import Location
from hicache_backends.segment.segment import Segment

_MAX_SEGMENTS = 4096
_MARK_S = 60.0


class Source(NamedTuple):
    """Where a page is to be read, and what it must be. `own`: the store's own slot, or -1."""

    segment: Segment
    slot: int
    generation: int
    checksum: int
    own: int = -1


class ForeignIndex:
    """Pages of stores that nobody had open when this one was opened. Read only, never trusted:
    another process may take such a store over, or delete it, at any time."""

    def __init__(self) -> None:
        self.rows: dict[bytes, int] = {}
        self._segments: list[Segment] = []
        self._first_rows: list[int] = []
        self._slots = array("i")
        self._generations = array("Q")
        self._checksums = array("Q")

    def add(self, segment: Segment, slots: NDArray[np.int32], records: NDArray[np.void]) -> None:
        """The pages of one segment."""
        first = len(self._slots)
        self._segments.append(segment)
        self._first_rows.append(first)
        self._slots.frombytes(slots.tobytes())
        self._generations.frombytes(records["generation"].tobytes())
        self._checksums.frombytes(records["checksum"].tobytes())
        digests = records["digest"].tolist()
        self.rows.update(zip(digests, range(first, first + len(digests)), strict=True))

    def find(self, digest: bytes) -> Source | None:
        """Where the page was."""
        row = self.rows.get(digest)
        if row is None:
            return None
        segment = self._segments[bisect_right(self._first_rows, row) - 1]
        return Source(segment, self._slots[row], self._generations[row], self._checksums[row])

    def forget_segment(self, directory: str, number: int) -> None:
        """None of the pages of a segment is there any more."""
        for at, segment in enumerate(self._segments):
            if (segment.directory, segment.number) == (directory, number):
                ends = [*self._first_rows[1:], len(self._slots)]
                gone = range(self._first_rows[at], ends[at])
                for digest in [d for d, row in list(self.rows.items()) if row in gone]:
                    self.rows.pop(digest, None)

    def forget(self, digests: Sequence[bytes]) -> None:
        """These pages are not there."""
        if self.rows:
            for digest in digests:
                self.rows.pop(digest, None)


class Neighbours:
    """Stores of the same namespace on the roots, by uuid. Nothing else of a location becomes
    part of a path."""

    def __init__(self, namespace: str, page_bytes: int, filing: Filing) -> None:
        self._namespace = namespace
        self._page_bytes = page_bytes
        self._filing = filing
        self._segments: dict[tuple[bytes, int], Segment] = {}
        self._marked_s: dict[str, float] = {}

    def find(self, packed: bytes, roots: Sequence[str], own: Sequence[bytes]) -> Source | None:
        """Where a location points to; None if it is no location, of pages of another size, of
        one of the `own` stores, or of a store that is on none of the roots."""
        try:
            place = Location.unpack(packed)
        except (ValueError, TypeError, struct.error):
            return None
        if place.length != self._page_bytes or place.store in own:
            return None
        segment = self._segments.get((place.store, place.segment)) or self._locate(place, roots)
        if segment is None:
            return None
        return Source(segment, place.slot, place.generation, place.checksum)

    def mark_read(self, sources: Sequence[Source]) -> None:
        """Keep the stores of these pages from counting as long unused; at most once a minute."""
        now_s = time.monotonic()
        for directory in {source.segment.directory for source in sources}:
            if now_s - self._marked_s.get(directory, -_MARK_S) >= _MARK_S:
                self._marked_s[directory] = now_s
                self._filing.mark_used(directory)

    def _locate(self, place: Location, roots: Sequence[str]) -> Segment | None:
        for number, root in enumerate(roots):
            directory = f"{root}/{self._namespace}/{place.store.hex()}"
            segment = Segment(number, place.store, directory, place.segment, 0, own=False)
            if len(roots) == 1 or os.access(segment.data_path, os.R_OK):
                if len(self._segments) >= _MAX_SEGMENTS:
                    self._segments.clear()
                self._segments[place.store, place.segment] = segment
                return segment
        return None
