"""Named shared memory that 3FS's daemon can map: its pages need no copy on their way."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import shutil
import struct
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from hicache_backends.errors import StorageUnavailable
from hicache_backends.segment.plain import open_plain
from hicache_backends.usrbio.layout import SHM_DIR

_DESCRIPTION = struct.Struct("=QQ16s")  # struct iov_memory of csrc/ring.h


class SharedMemory:
    """Memory in /dev/shm, which has a name there only while it is registered, so that nothing is
    left behind by a process that is killed.

    A page in it whose transfer timed out belongs to the daemon until `busy` says otherwise.
    """

    def __init__(self, size: int) -> None:
        self.uuid = uuid.uuid4()
        self.size = size  # exactly: the daemon infers from it how many I/Os a ring holds
        self.path = f"{SHM_DIR}/hicache-{os.getpid()}-{self.uuid}"
        self._holders: list[Callable[[int, int], bool]] = []
        try:
            self._fd = os.open(SHM_DIR, os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StorageUnavailable(f"no shared memory in {SHM_DIR}: {error}") from None
        try:
            os.posix_fallocate(self._fd, 0, self.size)  # or a write to it would be a SIGBUS
            self.memory = mmap.mmap(self._fd, self.size)
        except OSError as error:
            self.unlink()
            raise StorageUnavailable(_why_too_small(self.size, error)) from None
        view = np.frombuffer(self.memory, np.uint8)
        self.address: int = view.__array_interface__["data"][0]

    @contextlib.contextmanager
    def named(self) -> Iterator[None]:
        """It has its name meanwhile, and can have none afterwards. Raises OSError."""
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX)  # what `sweep` spares
            # link() by itself would not follow the link in /proc; linkat() does
            os.link(f"/proc/self/fd/{self._fd}", self.path, src_dir_fd=self._fd)
            yield
        finally:
            self.unlink()

    def unlink(self) -> None:
        """Take the name away, and the possibility of one; doing it again is fine."""
        Path(self.path).unlink(missing_ok=True)
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def linked(self) -> bool:
        """Whether it can still be registered."""
        return self._fd >= 0

    def describe(self) -> bytes:
        """Address, size and uuid, as the C extension takes them."""
        return _DESCRIPTION.pack(self.address, self.size, self.uuid.bytes)

    def busy(self, start: int, size: int) -> bool:
        """Whether a late I/O may still touch these bytes, counted from the start of the memory."""
        return any(holds(self.address + start, size) for holds in self._holders)

    def held_by(self, holds: Callable[[int, int], bool]) -> None:
        """Have `busy` ask whoever was given the memory, too."""
        self._holders.append(holds)


def sweep() -> None:
    """Take away the names of processes that were killed in the moment of a registration: those
    that nobody holds the lock of."""
    for path in Path(SHM_DIR).glob("hicache-*"):
        with contextlib.suppress(OSError):
            fd = open_plain(str(path), os.O_RDONLY)
            try:
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                path.unlink()
            finally:
                os.close(fd)


def _why_too_small(size: int, error: OSError) -> str:
    if error.errno not in (errno.ENOSPC, errno.ENOMEM):
        return f"no shared memory of {size} bytes in {SHM_DIR}: {error}"
    free = shutil.disk_usage(SHM_DIR).free
    return (
        f"{SHM_DIR} is too small: {size} bytes are needed, {free} are free; enlarge it (docker: "
        "--shm-size, or --ipc=host, which shares it with the 3FS daemon as well) or ask for less "
        "staging memory"
    )
