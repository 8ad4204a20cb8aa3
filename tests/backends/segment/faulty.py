"""An engine between the store and the real one, with a hook before and after each call."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import Engine, IoResult, ReadBatch, WriteBatch
from hicache_backends.io.select import open_engine
from hicache_backends.nvme import NvmeOptions, NvmeStorage
from hicache_backends.pages import Pages
from hicache_backends.segment.filing import PlainFiling
from hicache_backends.segment.medium import Limits
from hicache_backends.segment.opening import SegmentOptions
from hicache_backends.testing.canaries import NAMESPACE

Hook = Callable[[ReadBatch | WriteBatch], None]


def nothing(batch: ReadBatch | WriteBatch) -> None:
    """The hook that does nothing."""


class FaultyEngine(Engine):
    """`before` and `after` run around each read and write. Operations give EIO on files that
    `fails` says so of, by descriptor, and at the positions `fails_at` of each batch."""

    name = "faulty"

    def __init__(self) -> None:
        self._real = open_engine()
        self.before: Hook = nothing
        self.after: Hook = nothing
        self.fails: Callable[[int], bool] = lambda fd: False
        self.fails_at: set[int] = set()
        self.reads = self.writes = 0

    def read(self, batch: ReadBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        self.reads += 1
        self.before(batch)
        moved = self._real.read(batch, deadline, threads=threads)
        self.after(batch)
        return self._spoilt(batch, moved)

    def write(self, batch: WriteBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        self.writes += 1
        self.before(batch)
        moved = self._real.write(batch, deadline, threads=threads)
        self.after(batch)
        return self._spoilt(batch, moved)

    def checksum(self, pages: Pages, digests: bytes) -> NDArray[np.uint64]:
        return self._real.checksum(pages, digests)

    def copy(self, source: Pages, target: Pages) -> None:
        self._real.copy(source, target)

    def _spoilt(self, batch: ReadBatch | WriteBatch, moved: IoResult) -> IoResult:
        fds = enumerate(batch.fds.tolist())
        bad = np.array([self.fails(fd) or i in self.fails_at for i, fd in fds], dtype=np.bool_)
        return IoResult(np.where(bad, -errno.EIO, moved.results), moved.checksums)


class Gate:
    """A hook that holds the first call that comes to it until it is opened."""

    def __init__(self) -> None:
        self.reached = threading.Event()
        self._open = threading.Event()

    def __call__(self, batch: ReadBatch | WriteBatch) -> None:
        if not self.reached.is_set():
            self.reached.set()
            assert self._open.wait(30)

    def open(self) -> None:
        self._open.set()


def open_faulty(options: NvmeOptions, engine: Engine) -> NvmeStorage:
    """A store over this engine."""
    limits = Limits(options.capacity_bytes, options.free_floor_bytes)
    segments = SegmentOptions(
        roots=options.paths,
        segment_bytes=options.segment_bytes,
        direct=options.io_mode != "buffered",
        staged=options.zero_copy == "never",
    )
    filing = PlainFiling(NAMESPACE.page_bytes, limits)
    return NvmeStorage(NAMESPACE, engine, filing, segments)
