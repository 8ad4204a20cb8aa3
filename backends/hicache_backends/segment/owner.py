"""The `owner` file of a store: who has it open, and the lock that says whether anybody has."""

from __future__ import annotations

import contextlib
import dataclasses
import fcntl
import os
import socket
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack

from hicache_backends.segment.plain import NotPlain, open_plain

OWNER_BYTES = 1 << 20
"""No `owner` file has more."""


@dataclass(frozen=True, slots=True)
class Owner:
    """Who had a store open last, and what it is made of.

    `store`, `device` and `inode` tell a directory from its copy. `slots`: of each segment, by
    number, so that files that were cut can be made whole. `next_number`: of the next segment; none
    is used twice, since others may have the files of a deleted one open.
    """

    store: bytes
    device: int
    inode: int
    boots: int
    clean: bool
    slots: dict[int, int]
    next_number: int = 0

    def pack(self) -> bytes:
        fields = {
            **{field.name: getattr(self, field.name) for field in dataclasses.fields(self)},
            "host": socket.gethostname(),
            "boot_id": _boot_id(),
            "pid": os.getpid(),
        }
        packed: bytes = msgpack.packb({**fields, "crc": _crc(fields)})
        return packed

    @classmethod
    def unpack(cls, packed: bytes) -> Owner | None:
        """None for anything that `pack` did not write."""
        try:
            raw: dict[str, Any] = msgpack.unpackb(packed, strict_map_key=False)
            if raw.pop("crc") != _crc(raw):
                return None
            raw.setdefault("next_number", 0)
            return cls(**{field.name: raw[field.name] for field in dataclasses.fields(cls)})
        except (ValueError, TypeError, KeyError, AttributeError, msgpack.UnpackException):
            return None


class OwnerFile:
    """A store's `owner` file, locked by this process for as long as it is open."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    @classmethod
    def create(cls, directory: str) -> OwnerFile:
        """Make the file of a new store and lock it. Raises OSError."""
        fd = open_plain(f"{directory}/owner", os.O_RDWR | os.O_CREAT | os.O_EXCL)
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return cls(fd)

    @classmethod
    def take(cls, directory: str) -> OwnerFile | None:
        """Lock the file, made anew where it is missing or no file; None where another has it or
        it cannot be opened."""
        path = f"{directory}/owner"
        try:
            try:
                fd = open_plain(path, os.O_RDWR | os.O_CREAT)
            except NotPlain:
                Path(path).unlink()
                fd = open_plain(path, os.O_RDWR | os.O_CREAT)
        except OSError:
            return None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            return None
        return cls(fd)

    def read(self) -> Owner | None:
        """What the file says; None where it is damaged."""
        return Owner.unpack(os.pread(self.fd, OWNER_BYTES, 0))

    def write(self, owner: Owner) -> None:
        """Replace what the file says. Raises OSError."""
        packed = owner.pack()
        os.pwrite(self.fd, packed, 0)
        os.ftruncate(self.fd, len(packed))

    @property
    def vanished(self) -> bool:
        """Whether the store was deleted from outside."""
        return os.fstat(self.fd).st_nlink == 0

    def close(self) -> None:
        """Give up the lock. Closing again is fine."""
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)
            self.fd = -1


def _boot_id() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def _crc(fields: dict[str, Any]) -> int:
    return zlib.crc32(msgpack.packb(fields))
