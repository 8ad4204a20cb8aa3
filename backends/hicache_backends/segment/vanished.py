"""Segments whose files were deleted from outside: what is open of them could be read on, but by
this process alone, and everybody else would be sent there in vain."""

from __future__ import annotations

import errno
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.segment.segment import Segment
from hicache_backends.segment.state import StoreState

_log = logging.getLogger(__name__)


def forget_vanished(state: StoreState, digests: Sequence[bytes], deadline: Deadline) -> None:
    """Forget the segments of these pages that are no longer there. Raises OSError where the file
    system does not answer by the deadline."""
    with state.lock:
        slots = [slot for slot in map(state.index.slots.get, digests) if slot is not None]
        segments = {state.table.place(slot)[0] for slot in slots} - state.dead
    for segment in segments:
        if state.filing.run(partial(_is_gone, segment), deadline):
            _forget(state, segment, deadline)


def _forget(state: StoreState, segment: Segment, deadline: Deadline) -> None:
    """Take what is left of it away, too, and its size from what is used of the root."""
    volume = state.volumes[segment.volume]
    if not volume.growing.acquire(timeout=deadline.remaining_ms() / 1000):
        raise TimeoutError(errno.ETIMEDOUT, "the root is busy", volume.medium.root)
    try:
        if segment in state.dead:
            return
        _log.error("%s was deleted from outside: its pages are lost", segment.data_path)
        state.forget_segment(segment)
        if not segment.sealed:
            volume.give_up(segment)
    finally:
        volume.growing.release()


def _is_gone(segment: Segment) -> bool:
    """Whether one of its files is known not to be there."""
    for path in (segment.data_path, segment.index_path):
        try:
            Path(path).lstat()
        except FileNotFoundError:
            return True
        except OSError:
            return False
    return False
