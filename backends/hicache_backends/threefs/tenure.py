"""Who writes to a store: one process for the life of the store, for as long as it shows up.

3FS has no lock that holds across hosts. So a store's directory is made, under a fresh name, by
the one process that ever writes to it; it signs the file `owner` there twice a minute. A store
whose process has said that it closed, or of which another process on the same machine sees that
it has ended, or that has not signed for five minutes, is abandoned: its pages are still read,
and it is deleted when space is needed, but nobody writes to it any more.
"""

from __future__ import annotations

import functools
import os
import socket
import time
import zlib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import msgpack

from hicache_backends.segment.plain import open_plain

SIGN_S = 30.0
LEASE_S = 300.0
OWNER_BYTES = 4096
"""Of an `owner` file, always: other hosts go on believing a size that they saw."""


@dataclass(frozen=True, slots=True)
class Here:
    """What tells a process from any other: `started` in ticks since boot, the `pids` its number
    is one of."""

    host: str
    boot_id: str
    pids: int
    pid: int
    started: int

    @classmethod
    def now(cls) -> Here:
        """This process."""
        return _here(os.getpid())

    @property
    def is_gone(self) -> bool:
        """Whether the process is known to have ended; False for one on another machine."""
        here = Here.now()
        near = (self.boot_id, self.pids) == (here.boot_id, here.pids) and here.boot_id and here.pids
        return bool(near) and _started(self.pid) != self.started


@dataclass(frozen=True, slots=True)
class Tenure:
    """What an `owner` file says. `signed_s`: Unix time; `file_bytes`: of the store's segments;
    `wanted_s`: when the store last lacked its share of the root."""

    store: bytes
    here: Here
    signed_s: int
    clean: bool
    file_bytes: int
    wanted_s: int = 0

    @property
    def is_over(self) -> bool:
        """Whether nobody writes to the store any more."""
        return self.clean or self.here.is_gone or time.time() - self.signed_s > LEASE_S

    def pack(self) -> bytes:
        body: bytes = msgpack.packb({**asdict(self), "here": asdict(self.here)})
        packed = zlib.crc32(body).to_bytes(4, "little") + len(body).to_bytes(4, "little") + body
        return packed.ljust(OWNER_BYTES, b"\0")

    @classmethod
    def unpack(cls, packed: bytes) -> Tenure | None:
        """None for anything that `pack` did not write."""
        length = int.from_bytes(packed[4:8], "little")
        body = packed[8 : 8 + length]
        if len(body) != length or zlib.crc32(body) != int.from_bytes(packed[:4], "little"):
            return None
        try:
            raw: dict[str, Any] = msgpack.unpackb(body)
            here = Here(**{f.name: raw["here"][f.name] for f in fields(Here)})
            rest = {f.name: raw[f.name] for f in fields(cls) if f.name != "here"}
            return cls(here=here, **rest)
        except (ValueError, TypeError, KeyError, msgpack.UnpackException):
            return None

    @classmethod
    def read(cls, directory: str) -> Tenure | None:
        """What a store's `owner` file says, past the page cache; None where that is unreadable.
        Raises OSError where it cannot be opened."""
        fd = open_plain(f"{directory}/owner", os.O_RDONLY | os.O_DIRECT)
        try:
            return cls.unpack(os.pread(fd, OWNER_BYTES, 0))
        finally:
            os.close(fd)

    def write(self, directory: str, *, create: bool = False) -> None:
        """Sign. Raises OSError."""
        new = os.O_CREAT | os.O_EXCL if create else 0
        fd = open_plain(f"{directory}/owner", os.O_RDWR | os.O_DIRECT | new)
        try:
            os.pwrite(fd, self.pack(), 0)
        finally:
            os.close(fd)


@functools.cache
def _here(pid: int) -> Here:
    boot = Path("/proc/sys/kernel/random/boot_id")
    pids = Path("/proc/self/ns/pid")
    return Here(
        socket.gethostname(),
        boot.read_text().strip() if boot.exists() else "",
        pids.stat().st_ino if pids.exists() else 0,
        pid,
        _started(pid),
    )


def _started(pid: int) -> int:
    """When a process started, in ticks since boot; 0 if there is none."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    return int(status.rpartition(")")[2].split()[19])
