"""The files of segments on 3FS."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageError
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.io.engine import Engine, ReadBatch, RecordRuns, WriteBatch
from hicache_backends.native_calls import valid_records
from hicache_backends.pages import Pages
from hicache_backends.segment.filing import Contents, Filing
from hicache_backends.segment.format import RECORD, RECORD_BYTES
from hicache_backends.segment.medium import Limits, Medium
from hicache_backends.segment.plain import open_plain
from hicache_backends.segment.segment import Segment, data_path, index_path
from hicache_backends.threefs.aside import Aside
from hicache_backends.threefs.descriptors import AsideDescriptors
from hicache_backends.threefs.geometry import Geometry
from hicache_backends.threefs.images import IndexImage, IndexImages, index_bytes
from hicache_backends.threefs.medium import ThreeFsMedium, explained
from hicache_backends.threefs.punch import punch
from hicache_backends.threefs.reclaim import delete_segment, remove_store
from hicache_backends.usrbio.engine import UsrbioEngine

_READ_MS, _READS = 5000.0, 3  # when a store is opened
_T = TypeVar("_T")


class ThreeFsFiling(Filing):
    """Files are sparse and have their full size from the start; they get their names when they
    are whole. What may hang is done aside. `cluster`: the name of the cluster."""

    lost = frozenset((errno.ENODATA, errno.EUCLEAN, errno.EBADMSG, errno.ENOENT))
    passing = frozenset(
        (errno.ENOTCONN, errno.ESTALE, errno.ECONNABORTED, errno.EREMOTEIO, errno.EPROTO)
    )

    bad_place = frozenset[int]()  # no drive is seen through 3FS

    def __init__(
        self, geometry: Geometry, cluster: str, limits: Limits, engine: Engine, aside: Aside
    ) -> None:
        super().__init__(geometry.page_bytes, geometry.slot_bytes)
        self.padded_bytes = geometry.padded_bytes
        self.max_slots = geometry.max_slots(geometry.block_bytes())
        self._cluster = cluster
        self._limits = limits
        self._engine = engine
        self._aside = aside
        self._is_chunked = geometry.is_chunked
        self._images = IndexImages()
        self._doubtful: frozenset[Segment] = frozenset()
        self._doubts = threading.Lock()
        self._by_ring = isinstance(engine, UsrbioEngine)
        self.io_mode = "ring" if self._by_ring else ""
        self.index_flags = 0 if self._by_ring else os.O_DIRECT

    def open_medium(self, root: str, deadline: Deadline) -> Medium:
        def open_one() -> ThreeFsMedium:
            return ThreeFsMedium.open(root, self._cluster, self._limits, self.stored_bytes(1))

        return explained(open_one, root)

    def descriptors(self) -> AsideDescriptors:
        return AsideDescriptors(self._aside)

    def alignment(self, directory: str) -> int:
        """None is asked for by FUSE; the page cache is never used, it would be stale."""
        return 0 if self._by_ring else 1

    def create(self, directory: str, number: int, slots: int) -> None:
        inodes = set()
        paths = (index_path(directory, number), data_path(directory, number))
        sizes = (index_bytes(slots), slots * self.slot_bytes)
        try:
            for path, size in zip(paths, sizes, strict=True):
                inodes.add(_make(path, size))
        except OSError:
            self.delete(directory, number)
            raise
        self._images.add(directory, number, IndexImage(slots, frozenset(inodes)))

    def delete(self, directory: str, number: int) -> None:
        self._images.drop(directory, number)
        delete_segment(directory, number)

    def remove_store(self, directory: str) -> None:
        self._aside.later(lambda: remove_store(directory))

    def read(self, directory: str, number: int, *, own: bool = True) -> Contents:
        fd = open_plain(index_path(directory, number), os.O_RDONLY | self.index_flags)
        try:
            raw = np.zeros(os.fstat(fd).st_size // RECORD_BYTES * RECORD_BYTES, np.uint8)
            moved = self._read_file(index_path(directory, number), fd, raw)
            inode = os.fstat(fd).st_ino
        finally:
            os.close(fd)
        raw[moved // RECORD_BYTES * RECORD_BYTES :] = 0  # a hole, or not there
        if own:
            image = IndexImage(raw.size // RECORD_BYTES, frozenset({inode}))
            np.frombuffer(image.memory, np.uint8)[: raw.size] = raw
            self._images.add(directory, number, image)
        records = raw.view(RECORD)
        used = np.flatnonzero(valid_records(raw) & (records["bytes"] == self.page_bytes))
        return Contents(len(records), used.astype(np.int32), records[used])

    def spend(self, segment: Segment, slots: Sequence[int], deadline: Deadline) -> None:
        self.zero(segment, slots, deadline)
        if self._is_chunked:
            size = self.slot_bytes
            holes = [(slot * size, (slot + 1) * size) for slot in slots]
            self._aside.later(lambda: punch(segment.data_path, holes))

    def zero(self, segment: Segment, slots: Sequence[int], deadline: Deadline) -> None:
        """Of another process's segment, too: that its store was left behind is up to the caller."""
        if self._by_ring:
            self._zero(segment, slots, deadline)
        else:  # late, it holds the segment's image until it has ended
            self._aside.run(lambda: self._zero(segment, slots, deadline), deadline)

    def _zero(self, segment: Segment, slots: Sequence[int], deadline: Deadline) -> None:
        flags = os.O_RDWR | self.index_flags

        def open_index() -> int:
            return open_plain(segment.index_path, flags)

        fd = self._aside.run(open_index, deadline, late=os.close)
        try:
            image = self._images.of(segment)
            if image is None:
                for slot in slots:
                    empty = np.zeros(RECORD_BYTES, np.uint8)
                    self._write_file(segment, fd, slot * RECORD_BYTES, empty, deadline)
                return
            places = [(segment, slot) for slot in slots]
            with self._images.recording(places, [fd] * len(slots), deadline) as runs:
                held = np.frombuffer(image.memory, np.uint8)
                held.reshape(-1, RECORD_BYTES)[list(slots)] = 0
                self._check_doubts({segment})
                start, size = int(runs.offsets[0]), int(runs.sizes[0])
                self._write_file(segment, fd, start, held[start : start + size], deadline)
        finally:
            self._aside.later(lambda: os.close(fd))

    @contextmanager
    def recording(
        self, places: Sequence[tuple[Segment, int]], index_fds: Sequence[int], deadline: Deadline
    ) -> Iterator[RecordRuns | None]:
        with self._images.recording(places, index_fds, deadline) as runs:
            self._check_doubts({segment for segment, _ in places})
            yield runs

    def in_doubt(self) -> frozenset[Segment]:
        if self._doubtful:
            assert isinstance(self._engine, UsrbioEngine)  # noqa: S101 - no other is ever late
            with self._doubts:
                late = {inode for inode, _ in self._engine.writes_in_doubt()}
                images = ((segment, self._images.of(segment)) for segment in self._doubtful)
                self._doubtful = frozenset(
                    s for s, image in images if image and image.inodes & late
                )
        return self._doubtful

    def settle(self, segments: Sequence[Segment], results: Sequence[int]) -> None:
        failed = {s for s, moved in zip(segments, results, strict=True) if moved < 0}
        for segment in set(segments):
            if image := self._images.of(segment):
                image.unsure = segment in failed
        if failed and self._by_ring:
            with self._doubts:
                self._doubtful |= failed

    def _check_doubts(self, segments: set[Segment]) -> None:
        """Raises TimeoutError where a late write of records would undo one that is made now."""
        if not segments.isdisjoint(self.in_doubt()):
            raise TimeoutError(errno.ETIMEDOUT, "an earlier write may still happen")

    def run(self, work: Callable[[], _T], deadline: Deadline) -> _T:
        return self._aside.run(work, deadline)

    def mark_used(self, directory: str) -> None:
        self._aside.later(lambda: os.utime(f"{directory}/owner", follow_symlinks=False))

    def _read_file(self, path: str, fd: int, target: np.ndarray) -> int:
        """How many bytes from the start of a file are there. What fails is tried again: it is no
        empty file. Raises OSError."""
        if not target.size:
            return 0
        pages = Pages.from_buffers([target], writable=True)
        batch = ReadBatch(
            np.array([fd], np.int32), np.zeros(1, np.int64), pages, bytes(DIGEST_BYTES)
        )
        for _ in range(_READS):
            moved = int(self._engine.read(batch, Deadline.after_ms(_READ_MS)).results[0])
            if moved >= 0 or moved == -errno.ENODATA:
                return max(0, moved)
        raise OSError(-moved, os.strerror(-moved), path)

    def _write_file(
        self, segment: Segment, fd: int, offset: int, source: np.ndarray, deadline: Deadline
    ) -> None:
        """Raises OSError."""
        batch = WriteBatch(
            np.array([fd], np.int32),
            np.array([offset], np.int64),
            Pages.from_buffers([source], writable=False),
            bytes(DIGEST_BYTES),
            np.array([-1], np.int32),
            np.zeros(1, np.int64),
            bytearray(RECORD_BYTES),
            np.zeros(1, np.bool_),
        )
        try:
            moved = int(self._engine.write(batch, deadline).results[0])
        except StorageError:  # closed meanwhile, too
            moved = -errno.ENOTCONN
        self.settle([segment], [moved if moved == source.size else min(moved, -1)])
        if moved != source.size:
            number = -moved if moved < 0 else errno.EIO
            raise OSError(number, os.strerror(number), segment.index_path)


def _make(path: str, size: int) -> int:
    """A sparse file of this size, which has its name when it is whole; its inode."""
    draft = Path(path).with_name(f".new-{Path(path).name}")
    fd = open_plain(str(draft), os.O_RDWR | os.O_CREAT)
    try:
        os.ftruncate(fd, size)
        inode = os.fstat(fd).st_ino
        draft.rename(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(fd)
    return inode
