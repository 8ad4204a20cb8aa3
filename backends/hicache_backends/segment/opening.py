"""Opening a store: its roots, and the pages that lie there from before."""

from __future__ import annotations

import contextlib
import ctypes
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.io.engine import Engine
from hicache_backends.segment.filing import Filing
from hicache_backends.segment.foreign import ForeignIndex
from hicache_backends.segment.format import RECORD
from hicache_backends.segment.plain import NotPlain
from hicache_backends.segment.segment import (
    Segment,
    delete_segment,
    index_path,
    restore_segment,
    segment_files,
)
from hicache_backends.segment.state import StoreState
from hicache_backends.segment.volume import Volume

_log = logging.getLogger(__name__)

_OPEN_MS = 30_000.0
_BOOT_SHIFT = 40
_MANY_PAGES = 100_000


@dataclass(frozen=True, slots=True)
class SegmentOptions:
    """`roots`: directories, one a drive. `segment_bytes` None: a 64th of a root's capacity, at
    most 1 GiB. `direct`: use O_DIRECT where it works. `staged`: never do I/O in the caller's
    memory."""

    roots: tuple[str, ...]
    segment_bytes: int | None = None
    direct: bool = True
    staged: bool = False


class _Found(NamedTuple):
    """A segment, its slots that hold pages, and their records."""

    segment: Segment
    slots: NDArray[np.int32]
    records: NDArray[np.void]


def open_state(
    namespace: Namespace, engine: Engine, filing: Filing, options: SegmentOptions
) -> tuple[StoreState, ForeignIndex]:
    """The own store on each root, and the pages of stores that nobody has open.

    Raises StorageUnavailable where no root can be used, and IdentityMismatch.
    """
    deadline = Deadline.after_ms(_OPEN_MS)
    state = StoreState(namespace, engine, filing, options.direct)
    try:
        _load_own(state, _open_roots(state, options, deadline))
        foreign = _load_foreign(state, deadline)
    except BaseException:
        for volume in state.volumes:
            volume.close(clean=False)
        raise
    if len(state.index) + len(foreign.rows) >= _MANY_PAGES:
        _return_memory()
    return state, foreign


def _open_roots(state: StoreState, options: SegmentOptions, deadline: Deadline) -> list[_Found]:
    """Open each root that can be used, and read what lies in this process's store there."""
    problems: list[StorageUnavailable] = []
    found: list[_Found] = []
    for root in options.roots:
        try:
            found += _open_root(state, root, deadline)
        except OSError as error:
            problems.append(StorageUnavailable(f"{root} cannot be used: {error}"))
        except StorageUnavailable as error:
            problems.append(error)
    if not state.volumes:
        raise problems[0]
    for problem in problems:
        _log.error("going on without a root: %s", problem)
    state.lost_roots = tuple(map(str, problems))
    state.counts["lost_roots"] = len(problems)
    return found


def _open_root(state: StoreState, root: str, deadline: Deadline) -> list[_Found]:
    medium = state.filing.open_medium(root, deadline)
    volume = Volume(len(state.volumes), medium, state.filing, state.namespace, deadline)
    try:
        if _restore(volume, state.page_bytes):
            medium.recount(deadline)
        found = list(_segments(state, volume, volume.store.path))
        volume.store.slots = {each.segment.number: each.segment.slots for each in found}
        for path in medium.adopt(state.namespace, deadline):
            found += _adopted(state, volume, path)
        newest = (int(each.records["generation"].max(initial=0)) for each in found)
        volume.store.boots = 1 + max([volume.store.boots, *(n >> _BOOT_SHIFT for n in newest)])
        volume.store.sign()
    except BaseException:
        volume.close(clean=False)
        raise
    state.volumes.append(volume)
    return found


def _adopted(state: StoreState, volume: Volume, path: str) -> list[_Found]:
    """What a store that was taken over holds. Segments without a page are deleted, and the store
    with its last one."""
    found = list(_segments(state, volume, path, sealed=True))
    for each in found:
        if not len(each.slots):
            with contextlib.suppress(OSError):
                state.filing.delete(path, each.segment.number)
    if not segment_files(path):
        state.filing.remove_store(path)
    return [each for each in found if len(each.slots)]


def _restore(volume: Volume, page_bytes: int) -> bool:
    """Make the own segments whole again, and delete what was half made or half deleted; whether
    there was any such."""
    path, changed = volume.store.path, False
    for number in {number for number, _ in segment_files(path)}:
        slots = volume.store.slots.get(number, 0)
        try:
            changed |= bool(slots) and restore_segment(path, number, slots, page_bytes)
        except (FileNotFoundError, NotPlain):
            delete_segment(path, number)
            changed = True
    return changed


def _load_own(state: StoreState, found: list[_Found]) -> None:
    """Fill the index and the free slots."""
    slots, records = [np.empty(0, np.int32)], [np.empty(0, RECORD)]
    for each in found:
        first = state.add_segment(each.segment)
        state.dirty[first:] = b"\1" * each.segment.slots  # torn records are not known by slot
        slots.append(each.slots + first)
        records.append(each.records)
    free = np.ones(state.table.slots, dtype=np.bool_)
    free[state.index.load(np.concatenate(slots), np.concatenate(records))] = False
    first = 0
    for segment in state.table:
        unused = np.flatnonzero(free[first : first + segment.slots])[::-1] + first
        if segment.sealed and len(unused) == segment.slots:
            _delete_copies(state, segment)
        elif segment.sealed:
            state.seal(segment, segment.slots - len(unused))
        else:
            state.volumes[segment.volume].free.frombytes(unused.astype(np.int32).tobytes())
        first += segment.slots
    boots = max(volume.store.boots for volume in state.volumes)
    state.generation = boots << _BOOT_SHIFT


def _delete_copies(state: StoreState, segment: Segment) -> None:
    """Of a segment that was taken over every page lies in another, too."""
    state.dead.add(segment)
    with contextlib.suppress(OSError):
        state.filing.delete(segment.directory, segment.number)
        if not segment_files(segment.directory):
            state.filing.remove_store(segment.directory)


def _load_foreign(state: StoreState, deadline: Deadline) -> ForeignIndex:
    """The pages of stores that nobody has open. Last, so that processes that start at the same
    time have taken theirs over by now."""
    foreign = ForeignIndex()
    for volume in state.volumes:
        volume.medium.on_reclaim = foreign.forget_segment
        try:
            for path in volume.medium.abandoned(state.namespace, deadline):
                for found in _segments(state, volume, path, own=False):
                    foreign.add(found.segment, found.slots, found.records)
        except OSError as error:
            _log.warning("%s: stores of others are left out: %s", volume.medium.root, error)
    return foreign


def _segments(
    state: StoreState, volume: Volume, path: str, *, own: bool = True, sealed: bool = False
) -> Iterator[_Found]:
    """What each segment of a store holds. Files may go meanwhile. Raises OSError."""
    store = bytes.fromhex(Path(path).name)
    for number in sorted({number for number, _ in segment_files(path)}):
        try:
            count, slots, records = state.filing.read(path, number, own=own)
        except (FileNotFoundError, NotPlain):
            continue
        except OSError as error:
            if own and not sealed:
                raise
            _log.warning("%s is left out: %s", index_path(path, number), error.strerror)
            continue
        if count:
            segment = Segment(volume.number, store, path, number, count, own, sealed)
            yield _Found(segment, slots, records)


def _return_memory() -> None:
    """Give back to the system what the rebuild took: glibc would keep half as much again."""
    with contextlib.suppress(OSError, AttributeError):  # another libc
        ctypes.CDLL(None).malloc_trim(0)
