"""Open files of one store: bounded in number, never closed while in use."""

from __future__ import annotations

import contextlib
import os
import resource
import threading
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hicache_backends.deadline import Deadline
from hicache_backends.segment.plain import open_plain

_IDLE_S = 60.0


@dataclass(slots=True)
class _File:
    fd: int
    uses: int
    last_use_s: float
    forgotten: bool = False


class Descriptors:
    """A cache of file descriptors by path and flags.

    At most `limit` stay open beyond those in use. One that nobody used for a minute is closed
    at the next occasion, so that files deleted by their owner give their space back.
    """

    def __init__(self, limit: int | None = None) -> None:
        allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        unlimited = allowed == resource.RLIM_INFINITY
        self._limit = limit or (4096 if unlimited else max(64, min(4096, allowed // 4)))
        self._files: OrderedDict[tuple[str, int], _File] = OrderedDict()
        self._lock = threading.Lock()

    def lease(self, deadline: Deadline) -> Lease:
        """What a call opens its files with."""
        return Lease(self, deadline)

    def acquire(self, path: str, flags: int, deadline: Deadline) -> _File:
        """The file, open until it is released as often. Raises OSError."""
        key = (path, flags)
        with self._lock:
            if file := self._use(key):
                return file
        fd = self.open(path, flags, deadline)  # outside the lock: it may take long
        with self._lock:
            if file := self._use(key):
                surplus = [fd]
            else:
                file = self._files[key] = _File(fd, 1, time.monotonic())
                surplus = self._surplus()
        self.shut(surplus)
        return file

    def release(self, files: Iterable[_File]) -> None:
        """Give up one use of each."""
        with self._lock:
            surplus = []
            for file in files:
                file.uses -= 1
                if file.forgotten and not file.uses:
                    surplus.append(file.fd)
            surplus += self._surplus()
        self.shut(surplus)

    def open(self, path: str, flags: int, deadline: Deadline) -> int:
        """A descriptor of a regular file. Raises OSError."""
        return open_plain(path, flags)

    def is_deleted(self, fd: int) -> bool:
        """Whether the file has no name any more."""
        return not os.fstat(fd).st_nlink

    def shut(self, fds: Sequence[int]) -> None:
        """Close descriptors."""
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)

    def forget(self, path: str | None = None) -> None:
        """Open this path, or every one, anew from now on; what is in use is closed when its last
        use ends."""
        with self._lock:
            files = [
                self._files.pop(key) for key in list(self._files) if path is None or key[0] == path
            ]
            for file in files:
                file.forgotten = True
            fds = [file.fd for file in files if not file.uses]
        self.shut(fds)

    def close(self) -> None:
        """Close everything; no call is in flight, or this is the child of a fork."""
        files, self._files = self._files, OrderedDict()
        self.shut([file.fd for file in files.values()])

    def __len__(self) -> int:
        return len(self._files)

    def _use(self, key: tuple[str, int]) -> _File | None:
        file = self._files.get(key)
        if file:
            file.uses += 1
            file.last_use_s = time.monotonic()
            self._files.move_to_end(key)
        return file

    def _surplus(self) -> list[int]:
        """Take out what is idle for long or too much; what is in use near the old end waits."""
        fds = []
        horizon_s = time.monotonic() - _IDLE_S
        while self._files:
            key, file = next(iter(self._files.items()))
            if file.uses or (len(self._files) <= self._limit and file.last_use_s > horizon_s):
                break
            del self._files[key]
            fds.append(file.fd)
        return fds


class Lease:
    """The files of one call."""

    def __init__(self, descriptors: Descriptors, deadline: Deadline) -> None:
        self._descriptors = descriptors
        self._deadline = deadline
        self._open: dict[tuple[str, int], _File] = {}

    def fd(self, path: str, flags: int) -> int:
        """An open descriptor, good until the lease ends. Raises OSError."""
        file = self._open.get((path, flags))
        if file is None:
            file = self._open[path, flags] = self._descriptors.acquire(path, flags, self._deadline)
        return file.fd

    def has_lost(self, path: str) -> bool:
        """Whether this path was deleted since it was opened; then it is opened anew next time."""
        fds = [file.fd for (name, _), file in self._open.items() if name == path]
        lost = any(map(self._descriptors.is_deleted, fds))
        if lost:
            self._descriptors.forget(path)
        return lost

    def end(self) -> None:
        """Give all files back."""
        self._descriptors.release(self._open.values())
        self._open = {}
