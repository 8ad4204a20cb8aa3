"""The ring client over 3FS's own module `hf3fs_fuse.io`.

Everything is staged. The module gives up the GIL at each I/O that it prepares, so that a batch
beside a busy Python thread takes many times longer than through our own client.
"""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.io.engine import Engine, IoResult, ReadBatch, WriteBatch
from hicache_backends.io.posix import piece_views
from hicache_backends.io.records import BatchRecords, RecordWrite
from hicache_backends.io.select import open_engine
from hicache_backends.pages import Pages
from hicache_backends.usrbio.memory import SharedMemory
from hicache_backends.usrbio.mount import Mount
from hicache_backends.usrbio.official_ring import FdLease, Io, OfficialRing
from hicache_backends.usrbio.pool import RingPool, timed_out
from hicache_backends.usrbio.registrar import Registrar
from hicache_backends.usrbio.ring import RingClient, RingSettings


class OfficialRings(RingClient):
    """`io` is the module `hf3fs_fuse.io`. Raises StorageUnavailable."""

    name = "official"

    def __init__(self, io: Any, mount: Mount, settings: RingSettings, deadline: Deadline) -> None:
        super().__init__(mount, settings)
        self._io = io
        self._memory_engine = open_engine("auto")
        self._usable = True
        self._registrar = Registrar(mount.iovs, self._died, deadline)
        self._rings: list[OfficialRing] = []
        try:
            self._readers = self._registrar.run(lambda: self._open_rings(True), deadline)
            self._writers = self._registrar.run(lambda: self._open_rings(False), deadline)
        except BaseException:
            self.close(1000)
            raise

    def read(self, batch: ReadBatch, deadline: Deadline) -> IoResult:
        return self._run(self._readers, batch, set(batch.fds.tolist()), deadline, _Call.read)

    def write(self, batch: WriteBatch, deadline: Deadline) -> IoResult:
        fds = {*batch.fds.tolist(), *(fd for fd in batch.record_fds.tolist() if fd >= 0)}
        return self._run(self._writers, batch, fds, deadline, _Call.write)

    def register(self, memory: SharedMemory, deadline: Deadline) -> None:
        """Does nothing: pages in this memory are staged like others."""

    def writes_in_doubt(self) -> set[tuple[int, int]]:
        writers = [ring for ring in self._rings if not ring.for_read]
        places = {place for ring in writers for place in ring.places_in_doubt()}
        if places:  # perhaps nobody comes to use the rings as long as they wait
            self._registrar.suspect()
            self._writers.look()
        return places

    @property
    def usable(self) -> bool:
        return self._usable

    def stats(self) -> dict[str, int]:
        total = {"quarantined": 0, "late": 0, "timed_out": 0, "impossible": 0}
        for ring in self._rings:
            for name, count in ring.counts.items():
                total[name] = total.get(name, 0) + count
            total["quarantined"] += ring.outstanding
        return total

    def close(self, timeout_ms: float) -> None:
        self._usable = False

        def drop() -> None:  # on the thread that made them
            self._rings = []
            self._readers, self._writers = RingPool([]), RingPool([])

        with contextlib.suppress(StorageUnavailable):
            self._registrar.run(drop, Deadline.after_ms(max(1.0, timeout_ms)))
        self._registrar.close(timeout_ms / 1000)

    def abandon(self) -> None:
        self._usable = False
        self._registrar.abandon()

    def _open_rings(self, for_read: bool) -> RingPool[OfficialRing]:
        settings = self.settings
        rings = [
            OfficialRing(
                self._io,
                self.mount.point,
                settings.ring_entries,
                settings.block_bytes,
                settings.job,
                for_read,
            )
            for _ in range(settings.rings)
        ]
        self._rings += rings
        return RingPool(rings)

    def _run(
        self,
        pool: RingPool[OfficialRing],
        batch: Any,
        fds: set[int],
        deadline: Deadline,
        work: Callable[[_Call, Any], IoResult],
    ) -> IoResult:
        ring = pool.take(deadline)
        if ring is None:
            return timed_out(len(batch.pages))
        lease = FdLease(self._io, self.mount.device)
        try:
            inodes = self._registrar.run(lambda: lease.acquire(fds), deadline)
            result = work(_Call(ring, self._memory_engine, inodes, deadline), batch)
        finally:
            self._registrar.submit(lease.release)
            pool.give(ring)
        if np.isin(result.results, (-errno.ETIMEDOUT, -errno.ESTALE)).any():
            self._registrar.suspect()
        return result

    def _died(self) -> None:
        self._usable = False


class _Call:
    """The I/O of one call, in rounds of as many pages as there are free blocks."""

    def __init__(
        self, ring: OfficialRing, engine: Engine, inodes: dict[int, int], deadline: Deadline
    ) -> None:
        self._ring, self._engine = ring, engine
        self._inodes = inodes  # or -errno, by descriptor
        self._deadline = deadline

    def read(self, batch: ReadBatch) -> IoResult:
        results, sums = np.zeros(len(batch.pages), np.int64), np.zeros(len(batch.pages), np.uint64)

        def arrived(rows: NDArray[np.intp], staged: Pages) -> None:
            whole = np.flatnonzero(results[rows] == batch.pages.page_bytes)
            pages = batch.pages[rows[whole]]
            self._engine.copy(staged[whole], pages)
            sums[rows[whole]] = self._engine.checksum(pages, _digests(batch, rows[whole]))
            moved = results[rows].tolist()
            for i, size in enumerate(moved):
                if 0 < size < batch.pages.page_bytes:
                    _copy_start(staged[[i]], batch.pages[[int(rows[i])]], size)

        self._rounds(batch, results, batch.pages.page_bytes, lambda rows, staged: None, arrived)
        return IoResult(results, sums)

    def write(self, batch: WriteBatch) -> IoResult:
        results, sums = np.zeros(len(batch.pages), np.int64), np.zeros(len(batch.pages), np.uint64)
        records = BatchRecords(batch, results, self._ring.block_bytes)
        size = max(batch.pages.page_bytes, batch.padded_bytes)
        self._write_records(records, records.void_old())

        def leaving(rows: NDArray[np.intp], staged: Pages) -> None:
            self._engine.copy(batch.pages[rows], staged)
            sums[rows] = self._engine.checksum(staged, _digests(batch, rows))

        self._rounds(batch, results, size, leaving, lambda rows, staged: None)
        results[(results >= 0) & (results < size)] = -errno.EIO
        results[results > 0] = batch.pages.page_bytes
        self._write_records(records, records.put_new(sums))
        return IoResult(results, sums)

    def _rounds(
        self,
        batch: ReadBatch | WriteBatch,
        results: NDArray[np.int64],
        size: int,
        before: Callable[[NDArray[np.intp], Pages], None],
        after: Callable[[NDArray[np.intp], Pages], None],
    ) -> None:
        ring = self._ring
        for row, fd in enumerate(batch.fds.tolist()):
            if results[row] >= 0:
                results[row] = min(0, self._inodes[fd])
        rows = np.flatnonzero(results >= 0)
        parts = -(-size // ring.block_bytes)
        while len(rows):
            if not ring.wait_for_blocks(parts, self._deadline) or self._deadline.passed:
                results[rows] = -errno.ETIMEDOUT
                return
            now, rows = np.split(rows, [len(ring.free) // parts])
            ios = [self._page_ios(batch, int(row), size) for row in now]
            staged = self._staged(ios, batch.pages.page_bytes)
            before(now, staged)
            flat = [io for page in ios for io in page]
            ring.run(flat, self._deadline)
            results[now] = [_page_result(page) for page in ios]
            after(now, staged)
            ring.give_back(flat)

    def _page_ios(self, batch: ReadBatch | WriteBatch, row: int, size: int) -> list[Io]:
        fd, offset, step = int(batch.fds[row]), int(batch.offsets[row]), self._ring.block_bytes
        return [
            Io(fd, self._inodes[fd], offset + at, min(step, size - at), self._ring.free.pop())
            for at in range(0, size, step)
        ]

    def _staged(self, ios: list[list[Io]], page_bytes: int) -> Pages:
        """The pages in their blocks; what the blocks hold beyond them is zeros."""
        ring = self._ring
        starts = range(0, page_bytes, ring.block_bytes)
        sizes = [min(ring.block_bytes, page_bytes - start) for start in starts]
        padded = len(ios[0]) - len(sizes)
        for page in ios:
            for io, size in zip(page, [*sizes, *[0] * padded], strict=True):
                ring.fill(io.block, bytes(io.size - size), size)
        blocks = [[ring.block_address(io.block) for io in page[: len(sizes)]] for page in ios]
        return Pages(np.array(blocks, np.uint64), np.array([sizes] * len(ios), np.uint64))

    def _write_records(self, records: BatchRecords, writes: list[RecordWrite]) -> None:
        step = self._ring.block_bytes
        parts = [(write, at) for write in writes for at in range(0, len(write.data), step)]
        while parts:
            if not self._ring.wait_for_blocks(1, self._deadline) or self._deadline.passed:
                for write, at in parts:
                    records.not_written(write, at, at + step, errno.ETIMEDOUT)
                return
            count = len(self._ring.free)
            now, parts = parts[:count], parts[count:]
            ios = [self._record_io(write, at) for write, at in now]
            self._ring.run([io for io in ios if io.result is None], self._deadline)
            for (write, at), io in zip(now, ios, strict=True):
                result = -errno.ETIMEDOUT if io.result is None else io.result
                if result < io.size:
                    start, number = at + max(0, result), -min(0, result) or errno.EIO
                    records.not_written(write, start, at + io.size, number)
            self._ring.give_back(ios)

    def _record_io(self, write: RecordWrite, at: int) -> Io:
        inode, data = self._inodes[write.fd], write.data[at : at + self._ring.block_bytes]
        io = Io(write.fd, inode, write.offset + at, len(data), self._ring.free.pop())
        self._ring.fill(io.block, data)
        if inode < 0:
            io.result = inode
        return io


def _digests(batch: ReadBatch | WriteBatch, rows: NDArray[np.intp]) -> bytes:
    return np.frombuffer(batch.digests, np.uint8).reshape(-1, DIGEST_BYTES)[rows].tobytes()


def _copy_start(source: Pages, target: Pages, size: int) -> None:
    data = b"".join(piece_views(source)[0])[:size]
    for view in piece_views(target)[0]:
        part, data = data[: len(view)], data[len(view) :]
        view[: len(part)] = part


def _page_result(ios: list[Io]) -> int:
    """Bytes up to the first gap, or the first error."""
    moved = 0
    for io in ios:
        result = io.result if io.result is not None else -errno.ETIMEDOUT
        if result < 0:
            return result
        moved += result
        if result < io.size:
            return moved
    return moved
