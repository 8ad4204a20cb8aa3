"""Our own ring client: shared memory and symlinks here, the rings themselves in the C extension."""

from __future__ import annotations

import errno
import mmap
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hicache_backends import _native
from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.io.engine import IoResult, ReadBatch, WriteBatch
from hicache_backends.io.native import packed, packed_pieces, packed_records
from hicache_backends.usrbio.layout import SEMAPHORE_BYTES, data_key, ring_bytes, ring_key
from hicache_backends.usrbio.memory import SharedMemory
from hicache_backends.usrbio.mount import Mount
from hicache_backends.usrbio.pool import RingPool, timed_out
from hicache_backends.usrbio.registrar import Registrar
from hicache_backends.usrbio.ring import RingClient, RingSettings


class OwnRings(RingClient):
    """Raises StorageUnavailable: no shared memory, or the daemon does not take a registration."""

    name = "own"

    def __init__(self, mount: Mount, settings: RingSettings, deadline: Deadline) -> None:
        super().__init__(mount, settings)
        self._usable = True
        self._memories = b""
        self._registered: list[SharedMemory] = []  # or its address could become another's
        self._rings: list[_Ring] = []
        self._alarm = _Alarm()
        self._registrar = Registrar(mount.iovs, self._stop, deadline)
        try:
            self._semaphore = map_semaphore(self._registrar.semaphore)
            self._readers = RingPool(self._open_rings(True, deadline))
            self._writing = self._open_rings(False, deadline)
            self._writers = RingPool(self._writing)
        except BaseException:
            self.close(1000)
            raise
        self._alarm.start(self._registrar.suspect)

    def read(self, batch: ReadBatch, deadline: Deadline) -> IoResult:
        ring = self._readers.take(deadline)
        if ring is None:
            return timed_out(len(batch.pages))
        try:
            moved = _native.ring_read(
                ring.handle, *_packed(batch, deadline), self._memories, self.mount.device
            )
            return self._result(ring, moved)
        finally:
            self._readers.give(ring)

    def write(self, batch: WriteBatch, deadline: Deadline) -> IoResult:
        ring = self._writers.take(deadline)
        if ring is None:
            return timed_out(len(batch.pages))
        try:
            moved = _native.ring_write(
                ring.handle,
                *_packed(batch, deadline),
                self._memories,
                self.mount.device,
                batch.padded_bytes,
                *packed_records(batch),
            )
            return self._result(ring, moved)
        finally:
            self._writers.give(ring)

    def register(self, memory: SharedMemory, deadline: Deadline) -> None:
        if not memory.linked:
            raise StorageUnavailable("this memory was registered before; it has no name any more")
        key = data_key(memory.uuid)
        try:
            self._registrar.run(lambda: self._registrar.link(memory, key), deadline)
        finally:
            memory.unlink()
        memory.held_by(self._watch())
        self._registered.append(memory)
        self._memories = b"".join(one.describe() for one in self._registered)

    def writes_in_doubt(self) -> set[tuple[int, int]]:
        if self._registrar.dead:
            return set()
        packed_places = b"".join(
            _native.ring_in_doubt(ring.handle) for ring in self._writing if ring.doubtful
        )
        places = np.frombuffer(packed_places, np.uint64).reshape(-1, 2).tolist()
        if places:
            self._registrar.suspect()  # perhaps nobody comes to use the rings as long as they wait
        return {(inode, offset) for inode, offset in places}

    @property
    def usable(self) -> bool:
        return self._usable

    def stats(self) -> dict[str, int]:
        total: dict[str, int] = {}
        for ring in self._rings:
            for name, count in _native.ring_facts(ring.handle).items():
                total[name] = total.get(name, 0) + count
        total.pop("state", None)
        return total

    def close(self, timeout_ms: float) -> None:
        self._stop()
        self._registrar.close(timeout_ms / 1000)
        self._alarm.close()

    def abandon(self) -> None:
        self._usable = False
        self._registrar.abandon()
        self._alarm.abandon()

    def _open_rings(self, for_read: bool, deadline: Deadline) -> list[_Ring]:
        settings = self.settings
        each = settings.ring_entries * settings.block_bytes
        staging = SharedMemory(each * settings.rings)
        opened: list[_Ring] = []
        shared: list[SharedMemory] = []

        def register() -> None:
            self._registrar.link(staging, data_key(staging.uuid))
            for memory in shared:
                key = ring_key(memory.uuid, -settings.job, for_read=for_read)
                self._registrar.link(memory, key)

        try:
            for _ in range(settings.rings):
                shared.append(SharedMemory(ring_bytes(settings.ring_entries)))
            self._registrar.run(register, deadline)
        finally:
            for memory in (staging, *shared):
                memory.unlink()
        for i, memory in enumerate(shared):
            opened.append(self._open_ring(memory, staging, i * each))
        self._rings += opened
        return opened

    def _open_ring(self, memory: SharedMemory, staging: SharedMemory, start: int) -> _Ring:
        settings = self.settings
        each = settings.ring_entries * settings.block_bytes
        semaphore = np.frombuffer(self._semaphore, np.uint8)
        handle = _native.ring_open(
            memory.address,
            memory.size,
            settings.ring_entries,
            settings.job,
            semaphore.__array_interface__["data"][0],
            staging.address + start,
            each,
            start,
            settings.block_bytes,
            staging.uuid.bytes,
            self._alarm.fd,
        )
        return _Ring(handle, (memory, staging, self._semaphore, self._alarm))

    def _result(self, ring: _Ring, moved: tuple[bytearray, bytearray]) -> IoResult:
        result = IoResult(np.frombuffer(moved[0], np.int64), np.frombuffer(moved[1], np.uint64))
        failures = set(result.results[result.results < 0].tolist())
        if -errno.EPROTO in failures:
            self._stop()
        if failures & {-errno.ETIMEDOUT, -errno.ENOTCONN, -errno.ESTALE}:
            ring.doubtful = True
            self._registrar.suspect()
        return result

    def _stop(self) -> None:
        """The daemon is dead, or we close: calls in flight end, no others begin."""
        self._usable = False
        for ring in self._rings:
            _native.ring_stop(ring.handle)

    def _watch(self) -> Callable[[int, int], bool]:
        """Whether a late I/O may touch memory; it outlives us and holds no staging memory."""
        registrar, process = self._registrar, os.getpid()
        rings = [(ring.handle, ring.keep[0]) for ring in self._rings]

        def may_touch(address: int, size: int) -> bool:
            if registrar.dead or os.getpid() != process:
                return False
            return any(_native.ring_may_touch(handle, address, size) for handle, _ in rings)

        return may_touch


@dataclass(eq=False)
class _Ring:
    handle: _native.Ring
    keep: tuple[Any, ...]
    """The memory under the handle: of the ring, then of the rest."""
    doubtful: bool = False
    """Whether slots may be quarantined."""

    def quarantined(self) -> int:
        """Slots that wait for a completion that nobody awaits."""
        if not self.doubtful:
            return 0
        count = _native.ring_facts(self.handle)["quarantined"]
        self.doubtful = count > 0
        return count


class _Alarm:
    """Turns an eventfd, to which calls write while the daemon is silent, into a question."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC)
        self._closed = False
        self._thread: threading.Thread | None = None

    def start(self, ask: Callable[[], None]) -> None:
        def wait() -> None:
            while os.read(self.fd, 8) and not self._closed:
                ask()

        self._thread = threading.Thread(target=wait, name="usrbio-alarm", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread. The descriptor stays for a call that is just ending, as rings keep us."""
        thread, self._thread = self._thread, None
        if thread:
            self._closed = True
            os.eventfd_write(self.fd, 1)
            thread.join()

    def abandon(self) -> None:
        """In a forked child, and when nothing refers to this any more."""
        self._closed = True
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    __del__ = abandon


def map_semaphore(path: str) -> mmap.mmap:
    """What wakes the daemon. Raises StorageUnavailable."""
    try:
        with Path(path).open("r+b") as file:
            return mmap.mmap(file.fileno(), SEMAPHORE_BYTES)
    except (OSError, ValueError) as error:
        raise StorageUnavailable(f"the 3FS daemon's semaphore {path}: {error}") from None


def _packed(
    batch: ReadBatch | WriteBatch, deadline: Deadline
) -> tuple[bytes, bytes, bytes, int, bytes, int]:
    return (
        packed(batch.fds, np.int32),
        packed(batch.offsets, np.int64),
        packed_pieces(batch.pages),
        batch.pages.pieces,
        batch.digests,
        deadline.at_ns,
    )
