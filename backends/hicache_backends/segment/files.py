"""The files of one call, and the way to move its pages: past the page cache or through it."""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Sequence

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import IoResult
from hicache_backends.outcomes import TIMED_OUT, Outcome, Reason, miss
from hicache_backends.pages import Pages
from hicache_backends.segment.segment import Segment
from hicache_backends.segment.state import StoreState

_DIRECT_THREADS = 16  # a drive: 8 keep up with large pages, not with 64 KiB ones
_MAX_THREADS = 64
_CHUNK = 256  # numpy holds on to the GIL for arrays this small
_FULL = (errno.ENOSPC, errno.EDQUOT)


class CallFiles:
    """Opens the segments that a call touches, until `end`.

    A file that cannot be opened counts as an operation that failed with that errno.
    """

    def __init__(self, state: StoreState, deadline: Deadline) -> None:
        self._state = state
        self._lease = state.files.lease(deadline)
        self._errnos: dict[Segment, int] = {}
        self.threads = 1

    def data_fds(self, segments: Sequence[Segment], pages: Pages) -> list[int]:
        """A descriptor a page, -1 where there is none."""
        bits = _address_bits(pages) if self._state.direct else 1
        fds: dict[Segment, int] = {}
        drives: set[int] = set()
        for segment in segments:
            if segment not in fds:
                alignment = self._state.volumes[segment.volume].direct_alignment
                direct = bool(self._state.direct and alignment and not bits % alignment)
                if self._state.direct and not direct:
                    self._state.counts["direct_fallbacks"] += 1
                if direct:
                    drives.add(segment.volume)
                flags = os.O_DIRECT if direct else 0
                fds[segment] = self._open(segment, segment.data_path, flags)
        self.threads = min(max(1, _DIRECT_THREADS * len(drives)), _MAX_THREADS)
        return [fds[segment] for segment in segments]

    def index_fds(self, segments: Sequence[Segment]) -> list[int]:
        """A descriptor of the index file a page, -1 where there is none."""
        flags = self._state.filing.index_flags
        fds = {s: self._open(s, s.index_path, flags) for s in dict.fromkeys(segments)}
        return [fds[segment] for segment in segments]

    def results(self, segments: Sequence[Segment], moved: list[int]) -> list[int]:
        """What the engine moved, with the errno of files that could not be opened; the roots
        learn how it went."""
        if self._errnos:
            moved = [
                -self._errnos[segment] if segment in self._errnos else count
                for segment, count in zip(segments, moved, strict=True)
            ]
        if min(moved) < 0 and not self._state.filing.passing.isdisjoint({-n for n in moved}):
            self._state.files.forget()
        dead = self._state.dead  # their files are meant to be gone
        for volume in self._state.volumes:
            if volume.failures or min(moved) < 0:
                volume.note(
                    [
                        max(-count, 0)
                        for segment, count in zip(segments, moved, strict=True)
                        if segment.own and segment.volume == volume.number and segment not in dead
                    ]
                )
        return moved

    def has_lost(self, segment: Segment) -> bool:
        """Whether the files of a segment were deleted since they were opened."""
        paths = (segment.data_path, segment.index_path)
        return any([self._lease.has_lost(path) for path in paths])  # noqa: C419  # of both

    def end(self) -> None:
        """Give the descriptors back."""
        self._lease.end()

    def _open(self, segment: Segment, path: str, flags: int) -> int:
        try:
            return self._lease.fd(path, flags | (os.O_RDWR if segment.own else os.O_RDONLY))
        except OSError as error:
            self._errnos[segment] = error.errno or errno.EIO
            return -1


def bad_spots(results: Sequence[int], errnos: Collection[int]) -> set[int]:
    """Which operations failed because their place on the medium is bad, which these errnos mean
    where others went well."""
    if max(results, default=-1) < 0:
        return set()
    return {i for i, moved in enumerate(results) if -moved in errnos}


def failed_as(number: int, count: int) -> IoResult:
    """Of a call that the engine did not carry out."""
    return IoResult(np.full(count, -number, np.int64), np.zeros(count, np.uint64))


def failure(number: int) -> Outcome:
    """The outcome of an operation that failed with this errno."""
    if number == errno.ETIMEDOUT:
        return TIMED_OUT
    name = errno.errorcode.get(number, str(number))
    return miss(Reason.NO_SPACE if number in _FULL else Reason.IO_ERROR, name)


def _address_bits(pages: Pages) -> int:
    """Every bit that is set in the address or the size of any piece."""
    bits = pages.page_bytes
    for array in (pages.addresses.ravel(), pages.sizes.ravel()):
        for start in range(0, array.size, _CHUNK):
            bits |= int(np.bitwise_or.reduce(array[start : start + _CHUNK]))
    return bits
