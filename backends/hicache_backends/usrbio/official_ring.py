"""One ring of the official module, its staging blocks, and the descriptors it has to be told of."""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar

from hicache_backends.deadline import Deadline
from hicache_backends.usrbio.memory import SharedMemory

_MAX_ERRNO = 4095


@dataclass(eq=False)
class Io:
    """One I/O between a file and a staging block. `result` is bytes or -errno, once known."""

    fd: int
    inode: int
    offset: int
    size: int
    block: int
    result: int | None = None
    awaited: bool = True


@dataclass(frozen=True)
class NamedMemory:
    """What `make_iovec` asks of a SharedMemory of multiprocessing."""

    name: str
    buf: memoryview


class OfficialRing:
    """Made on the registration thread. Serves one call at a time."""

    def __init__(
        self, io: Any, mount_point: str, entries: int, block_bytes: int, job: int, for_read: bool
    ) -> None:
        self.block_bytes = block_bytes
        self.for_read = for_read
        self.memory = SharedMemory(entries * block_bytes)
        with self.memory.named():
            name = Path(self.memory.path).name
            named = NamedMemory(name, memoryview(self.memory.memory))
            self._iov = io.make_iovec(named, mount_point)
            self._ring = io.make_ioring(
                mount_point, entries, for_read=for_read, io_depth=-job, timeout=0
            )
        self.free = list(range(entries))
        self._outstanding: set[Io] = set()
        self.counts = Counter[str]()

    def quarantined(self) -> int:
        """Slots that wait for a completion that nobody awaits."""
        if self._outstanding:
            self._reap(0)
        return len(self._outstanding)

    @property
    def outstanding(self) -> int:
        """I/Os without a completion."""
        return len(self._outstanding)

    def places_in_doubt(self) -> list[tuple[int, int]]:
        """Inode and offset of the I/Os that nobody waits for."""
        late = [io for io in list(self._outstanding) if not io.awaited]
        return [(io.inode, io.offset) for io in late]

    def block_address(self, block: int) -> int:
        return self.memory.address + block * self.block_bytes

    def fill(self, block: int, data: bytes | memoryview, at: int = 0) -> None:
        """Put bytes into a block."""
        start = block * self.block_bytes + at
        self.memory.memory[start : start + len(data)] = data

    def wait_for_blocks(self, count: int, deadline: Deadline) -> bool:
        """Whether so many blocks are free by then."""
        while len(self.free) < count and not deadline.passed and self._outstanding:
            self._reap(deadline.remaining_ms())
        return len(self.free) >= count

    def run(self, ios: Sequence[Io], deadline: Deadline) -> None:
        """Move them. Those without a result by the deadline get -ETIMEDOUT, and their blocks stay
        out of use until the completion comes; the blocks of the others are the caller's."""
        for io in ios:
            start = io.block * self.block_bytes
            try:
                self._ring.prepare(
                    self._iov[start : start + io.size],
                    self.for_read,
                    io.fd,
                    io.offset,
                    userdata=io,
                )
            except OSError as error:
                io.result = -(error.errno or errno.EIO)
            else:
                self._outstanding.add(io)
        self.counts["submitted"] += len(self._outstanding)
        self.counts["posts"] += 1
        try:
            self._ring.submit()
        except OSError:
            self.counts["submit_failures"] += 1  # the deadline ends the call
        while any(io.result is None for io in ios) and not deadline.passed:
            self._reap(deadline.remaining_ms())
        for io in ios:
            if io.result is None:
                io.result = -errno.ETIMEDOUT
                io.awaited = False
                self.counts["timed_out"] += 1

    def give_back(self, ios: Iterable[Io]) -> None:
        """The blocks of these may be used again, if nothing is outstanding on them."""
        self.free += [io.block for io in ios if io.awaited]

    def _reap(self, timeout_ms: float) -> None:
        self.counts["waits"] += 1
        try:
            done = self._ring.wait(
                max_results=max(1, len(self._outstanding)),
                min_results=1,
                timeout=timedelta(milliseconds=timeout_ms),
            )
        except OSError:
            return
        for answer in done:
            io = answer.userdata
            if not isinstance(io, Io) or io not in self._outstanding:
                self.counts["impossible"] += 1
                continue
            self._outstanding.remove(io)
            if not io.awaited:
                self.counts["late"] += 1
                self.free.append(io.block)
            elif -_MAX_ERRNO <= answer.result <= io.size:
                io.result = answer.result
            else:
                self.counts["impossible"] += 1
                io.result = -errno.EIO


class FdLease:
    """Descriptors of one call. The module refuses one that is registered twice, so uses count."""

    _uses: ClassVar = Counter[int]()  # the module knows one table for the whole process
    _lock: ClassVar = threading.Lock()

    def __init__(self, io: Any, device: int) -> None:
        self._io = io
        self._device = device
        self._held: list[int] = []

    def acquire(self, fds: Iterable[int]) -> dict[int, int]:
        """Register them; the inode of each, or -errno."""
        return {fd: self._register(fd) for fd in fds}

    def release(self) -> None:
        """Deregister those that nobody else uses."""
        with self._lock:
            for fd in self._held:
                self._uses[fd] -= 1
                if not self._uses[fd]:
                    self._io.deregister_fd(fd)
            self._held = []

    def _register(self, fd: int) -> int:
        try:
            facts = os.fstat(fd)
            if facts.st_dev != self._device:
                return -errno.ESTALE
            with self._lock:
                if not self._uses[fd]:
                    self._io.register_fd(fd)
                self._uses[fd] += 1
                self._held.append(fd)
        except OSError as error:
            return -(error.errno or errno.EBADF)
        return facts.st_ino
