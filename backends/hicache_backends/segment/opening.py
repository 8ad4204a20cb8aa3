"""Opening a store: its roots, and the pages that lie there from before."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.io.engine import Engine
from hicache_backends.segment.directory import unlocked_stores
from hicache_backends.segment.foreign import ForeignIndex
from hicache_backends.segment.format import RECORD
from hicache_backends.segment.medium import Limits, Medium
from hicache_backends.segment.segment import (
    Segment,
    delete_segment,
    read_segment,
    segment_files,
)
from hicache_backends.segment.state import StoreState
from hicache_backends.segment.volume import Volume

_log = logging.getLogger(__name__)

_OPEN_MS = 30_000.0
_BOOT_SHIFT = 40


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """`roots`: directories, one a drive. `segment_bytes` None: a 64th of a root's capacity, at
    most 1 GiB. `direct`: use O_DIRECT where it works. `staged`: never do I/O in the caller's
    memory. `create`: make a root whose parent directory exists."""

    roots: tuple[str, ...]
    limits: Limits = field(default_factory=Limits)
    segment_bytes: int | None = None
    direct: bool = True
    staged: bool = False
    create: bool = True


def open_state(
    namespace: Namespace, engine: Engine, options: SegmentOptions
) -> tuple[StoreState, ForeignIndex]:
    """The own store on each root, and the pages of stores that nobody has open.

    Raises StorageUnavailable where no root can be used, and IdentityMismatch.
    """
    deadline = Deadline.after_ms(_OPEN_MS)
    state = StoreState(namespace, engine, options.direct)
    try:
        _open_roots(state, options, deadline)
        _load_own(state)
        return state, _load_foreign(state, deadline)
    except BaseException:
        for volume in state.volumes:
            volume.close(clean=False)
        raise


def _open_roots(state: StoreState, options: SegmentOptions, deadline: Deadline) -> None:
    problems: list[StorageUnavailable] = []
    for root in options.roots:
        try:
            medium = Medium.open(root, options.limits, create=options.create, deadline=deadline)
            volume = Volume(len(state.volumes), medium, state.namespace, deadline)
        except OSError as error:
            problems.append(StorageUnavailable(f"{root} cannot be used: {error}"))
        except StorageUnavailable as error:
            problems.append(error)
        else:
            state.volumes.append(volume)
    if not state.volumes:
        raise problems[0]
    for problem in problems:
        _log.error("going on without a root: %s", problem)
        state.counts["lost_roots"] += 1


def _load_own(state: StoreState) -> None:
    """Fill the index and the free slots, and begin a boot later than any record's."""
    slots, records = [np.empty(0, np.int32)], [np.empty(0, RECORD)]
    for volume in state.volumes:
        for segment, used, found in _segments(state, volume, volume.store.path):
            first = state.add_segment(segment)
            state.dirty[first:] = b"\1" * segment.slots  # torn records are not known by slot
            slots.append(used + first)
            records.append(found)
    free = np.ones(state.table.slots, dtype=np.bool_)
    free[state.index.load(np.concatenate(slots), np.concatenate(records))] = False
    first = 0
    for segment in state.table:
        unused = np.flatnonzero(free[first : first + segment.slots])[::-1] + first
        state.volumes[segment.volume].free.frombytes(unused.astype(np.int32).tobytes())
        first += segment.slots
    newest = max(int(found["generation"].max(initial=0)) for found in records)
    boots = 1 + max(newest >> _BOOT_SHIFT, *(v.store.boots for v in state.volumes))
    for volume in state.volumes:
        volume.sign(boots)
    state.generation = boots << _BOOT_SHIFT


def _load_foreign(state: StoreState, deadline: Deadline) -> ForeignIndex:
    """The pages of stores that nobody has open. Last, so that processes that start at the same
    time have taken theirs over by now."""
    foreign = ForeignIndex()
    for volume in state.volumes:
        for path in unlocked_stores(volume.medium, state.namespace, deadline):
            for segment, slots, records in _segments(state, volume, path, own=False):
                foreign.add(segment, slots, records)
    return foreign


def _segments(
    state: StoreState, volume: Volume, path: str, *, own: bool = True
) -> Iterator[tuple[Segment, NDArray[np.int32], NDArray[np.void]]]:
    """Each segment of a store, its used slots, and their records. Files may go meanwhile."""
    store = bytes.fromhex(Path(path).name)
    for number in sorted({number for number, _ in segment_files(path)}):
        try:
            slots, used, records = read_segment(path, number, state.page_bytes)
        except FileNotFoundError:
            slots = 0
        if slots:
            yield Segment(volume.number, store, path, number, slots, own), used, records
        elif own:
            delete_segment(path, number)  # half made, or half deleted
