"""A double of the module `hf3fs_fuse.io`: its calls, served from files by a thread of its own.

It records what was asked, and answers out of order, short or with an error as it is told.
"""

from __future__ import annotations

import errno
import os
import queue
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from hicache_backends.usrbio.layout import SHM_DIR


@dataclass(eq=False)
class Slice:
    """A part of an iov; as the module, an answer is the slice with two more facts."""

    buf: memoryview
    fd: int = -1
    off: int = 0
    result: int = 0
    userdata: Any = None


class Iov:
    def __init__(self, buf: memoryview) -> None:
        self._buf = buf

    def __getitem__(self, which: slice) -> Slice:
        return Slice(self._buf[which])


class Ring:
    def __init__(self, module: OfficialDouble, entries: int, for_read: bool) -> None:
        self._module, self._entries, self._for_read = module, entries, for_read
        self._prepared: list[Slice] = []
        self._done: queue.SimpleQueue[Slice] = queue.SimpleQueue()
        self._in_flight = 0

    def prepare(self, iov: Slice, read: bool, fd: int, off: int, userdata: Any = None) -> Ring:
        assert read == self._for_read
        self._in_flight += 1
        assert self._in_flight <= self._entries
        if fd not in self._module.fds:
            raise OSError(9, "not registered")
        source = self._module.past_cache[fd] if read else fd
        # the file may be closed and deregistered before a late I/O is done
        iov.fd, iov.off, iov.userdata = os.dup(source), off, userdata
        self._prepared.append(iov)
        self._module.ios.append((off, len(iov.buf)))
        return self

    def submit(self) -> Ring:
        batch, self._prepared = self._prepared, []
        self._module.chance.shuffle(batch)
        threading.Thread(target=self._serve, args=(batch,), daemon=True).start()
        return self

    def _serve(self, batch: list[Slice]) -> None:
        self._module.go.wait()
        for one in batch:
            one.result = self._module.verdict(one.off, len(one.buf))
            if one.result > 0:
                try:
                    one.result = self._move(one)
                except OSError as error:
                    one.result = -(error.errno or errno.EIO)
            os.close(one.fd)
            self._done.put(one)

    def _move(self, one: Slice) -> int:
        if not self._for_read:
            return os.pwrite(one.fd, one.buf[: one.result], one.off)
        data = os.pread(one.fd, min(one.result, len(one.buf)), one.off)
        one.buf[: len(data)] = data
        whole = len(data) == min(one.result, len(one.buf))
        return one.result if whole else len(data)  # the end of the file

    def wait(
        self,
        *,
        max_results: int = 0,
        min_results: int = 0,
        timeout: timedelta | None = None,
    ) -> list[Slice]:
        end = time.monotonic() + timeout.total_seconds() if timeout is not None else None
        found: list[Slice] = []
        while len(found) < max_results:
            left = 0.0 if len(found) >= min_results else None
            if left is None and end is not None:
                left = max(0.0, end - time.monotonic())
            try:
                found.append(self._done.get(timeout=left) if left else self._done.get(False))
            except queue.Empty:
                break
        self._in_flight -= len(found)
        return found


def _all(_: int, size: int) -> int:
    return size


@dataclass
class OfficialDouble:
    """`verdict`: the result of an I/O by file offset and size; `ios`: these, as they were asked
    for; `go`: cleared, nothing answers. `past_cache`: what registered files are read by, as rings
    never see the kernel's page cache."""

    verdict: Callable[[int, int], int] = _all
    chance: random.Random = field(default_factory=lambda: random.Random(5))  # noqa: S311
    fds: set[int] = field(default_factory=set)
    ios: list[tuple[int, int]] = field(default_factory=list)
    go: threading.Event = field(default_factory=threading.Event)
    past_cache: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.go.set()

    def make_iovec(self, shm: Any, mount_point: str, block_size: int = 0, numa: int = -1) -> Iov:
        assert os.path.exists(f"{SHM_DIR}/{shm.name}")  # noqa: PTH110
        return Iov(shm.buf)

    def make_ioring(
        self,
        mount_point: str,
        entries: int,
        for_read: bool = True,
        io_depth: int = 0,
        priority: int | None = None,
        timeout: int | None = None,
        numa: int = -1,
        flags: int = 0,
    ) -> Ring:
        assert io_depth < 0
        assert timeout == 0
        return Ring(self, entries, for_read)

    def register_fd(self, fd: int) -> None:
        assert fd not in self.fds
        self.past_cache[fd] = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_DIRECT)
        self.fds.add(fd)

    def deregister_fd(self, fd: int) -> None:
        self.fds.remove(fd)
        os.close(self.past_cache.pop(fd))
