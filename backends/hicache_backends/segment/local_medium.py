"""A root on a local file system: its uuid, and the capacity that all stores on it share.

`<root>/.medium` is one small record, made once. Whoever changes what lies on the root holds a
`flock` on it, and keeps in it the sum of all segment files:

    magic 8, format version 4, Unix time at which a store last lacked its share 4, uuid 16,
    device 8, inode 8, capacity 8, free floor 8, bytes of segment files 8, CRC-32 of all that 4;
    little endian
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import stat
import struct
import time
import uuid
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.errors import IdentityMismatch, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.segment.directory import (
    LockedDirectory,
    StoreDirectory,
    open_again,
    open_store,
    unlocked_stores,
)
from hicache_backends.segment.format import FORMAT_VERSION
from hicache_backends.segment.medium import Limits, Medium
from hicache_backends.segment.plain import open_plain
from hicache_backends.segment.reclaim import live_stores, reclaim, segment_file_bytes

_log = logging.getLogger(__name__)

_MAGIC = b"HICACHE\0"
_BODY = struct.Struct("<8sII16sQQQQQ")
_CRC = struct.Struct("<I")
_POLL_S = 0.002
_RECOUNT_S = 60.0
_WANTED_S = 60.0


@dataclass(slots=True)
class Ledger:
    """What `.medium` says; written back when the lock is given up. `fd`: the file; `written`: what
    it says right now."""

    uuid: bytes
    capacity_bytes: int
    free_floor_bytes: int
    used_bytes: int
    wanted_s: int = 0
    fd: int = -1
    written: bytes = b""


class LocalMedium(Medium):
    """A root whose stores are locked with `flock`. Thread safe; holds no descriptor."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._limits = Limits()
        self._recounted_s = 0.0
        self._device = 0
        self._figures = (0, 0)

    @classmethod
    def open(cls, root: str, limits: Limits, *, create: bool, deadline: Deadline) -> LocalMedium:
        """Raises StorageUnavailable where the directory cannot be used, IdentityMismatch where
        its `.medium` is of another format."""
        medium = cls(root)
        try:
            if create:
                Path(root).mkdir(exist_ok=True)
            with medium.locked(deadline, limits) as ledger:
                ledger.used_bytes = segment_file_bytes(root)
                medium.uuid = ledger.uuid
                medium._limits = Limits(ledger.capacity_bytes, ledger.free_floor_bytes)
            medium._device = Path(root).stat().st_dev
        except OSError as error:
            raise StorageUnavailable(_why_not(root, error)) from error
        return medium

    @contextlib.contextmanager
    def locked(self, deadline: Deadline, limits: Limits | None = None) -> Iterator[Ledger]:
        """The root to oneself. Raises OSError (ETIMEDOUT at the deadline)."""
        fd = open_plain(f"{self.root}/.medium", os.O_RDWR | (os.O_CREAT if limits else 0))
        try:
            _lock(fd, deadline)
            ledger = self._read(fd, limits)
            try:
                yield ledger
            finally:
                self._figures = (ledger.capacity_bytes, ledger.used_bytes)
                self._write(ledger)
        finally:
            os.close(fd)

    def open_store(self, namespace: Namespace, deadline: Deadline) -> LockedDirectory:
        """The largest store of the namespace that no process has open, else a new one."""
        with self.locked(deadline):
            return open_store(self.root, namespace)

    def open_again(
        self, namespace: Namespace, lost: StoreDirectory, deadline: Deadline
    ) -> LockedDirectory:
        root = Path(self.root)
        if (root if root.exists() else root.parent).stat().st_dev != self._device:
            # this is the directory it was mounted on
            raise OSError(errno.ENODEV, "the drive is gone", self.root)
        self._reinstate(deadline)
        with self.locked(deadline):
            return open_again(self.root, namespace, lost)

    def abandoned(self, namespace: Namespace, deadline: Deadline) -> list[str]:
        with self.locked(deadline):
            return unlocked_stores(self.root, namespace)

    @contextlib.contextmanager
    def reserve(
        self, most: int, unit: int, namespace: str, own: int, deadline: Deadline
    ) -> Iterator[tuple[int, bool]]:
        """The root stays locked while the caller makes its files, so that nobody counts them too
        early."""
        with self.locked(deadline) as ledger:
            if self._room(ledger) < most:
                self._make_room(ledger, most, namespace)
            granted = max(0, min(most, self._room(ledger))) // unit * unit
            wanted = 0 <= time.time() - ledger.wanted_s < _WANTED_S
            if (wanted or not granted) and self._is_to_yield(ledger, own, most, granted, wanted):
                yield 0, True
                return
            ledger.used_bytes += granted
            self._write(ledger)  # a process that is killed from here on has taken too much
            try:
                yield granted, False
            except OSError:
                ledger.used_bytes = segment_file_bytes(self.root)
                raise

    @contextlib.contextmanager
    def release(self, size: int, deadline: Deadline) -> Iterator[None]:
        with self.locked(deadline) as ledger:
            yield
            ledger.used_bytes = max(0, ledger.used_bytes - size)

    def recount(self, deadline: Deadline) -> None:
        with self.locked(deadline) as ledger:
            ledger.used_bytes = segment_file_bytes(self.root)

    def figures(self) -> tuple[int, int]:
        return self._figures

    def _reinstate(self, deadline: Deadline) -> None:
        """Make the root and its `.medium` again, as they were, where they were deleted; believe
        the files. Raises OSError, also where another medium is there by now."""
        Path(self.root).mkdir(exist_ok=True)
        limits = None if Path(self.root, ".medium").exists() else self._limits
        with self.locked(deadline, limits) as ledger:
            if ledger.uuid != self.uuid:
                raise OSError(errno.ESTALE, "the root was replaced while in use", self.root)
            ledger.used_bytes = segment_file_bytes(self.root)

    def _room(self, ledger: Ledger) -> int:
        """Bytes that may be added to the root."""
        system = os.statvfs(self.root)
        return min(
            ledger.capacity_bytes - ledger.used_bytes,
            system.f_bavail * system.f_frsize - ledger.free_floor_bytes,
        )

    def _is_to_yield(
        self, ledger: Ledger, own: int, segment: int, granted: int, wanted: bool
    ) -> bool:
        """Whether a store has to give way: it has more than its share while another has less
        than half of one, or while the root is overfull. One with so little says so."""
        share = ledger.capacity_bytes // max(1, live_stores(self.root))
        if 2 * (own + granted) < share:
            ledger.wanted_s = int(time.time())
        elif 2 * own < share:
            ledger.wanted_s = 0
        elif wanted and own - segment >= share:
            return True
        return own > share and ledger.used_bytes > ledger.capacity_bytes

    def _make_room(self, ledger: Ledger, most: int, namespace: str) -> None:
        freed, segments = reclaim(self.root, most - self._room(ledger), namespace)
        ledger.used_bytes = max(0, ledger.used_bytes - freed)
        self.reclaimed_segments += segments
        now_s = time.monotonic()
        if self._room(ledger) < most and now_s - self._recounted_s > _RECOUNT_S:
            self._recounted_s = now_s  # files may have gone behind the ledger's back
            ledger.used_bytes = segment_file_bytes(self.root)

    def _read(self, fd: int, limits: Limits | None) -> Ledger:
        """The ledger. With `limits` those are put in force, and a ledger that is
        missing, torn, or came with a copy of its root is made anew."""
        packed = os.pread(fd, _BODY.size + _CRC.size, 0)
        body = _unpacked(packed)
        here = Path(self.root).stat()
        if body and body[1] != FORMAT_VERSION:
            raise IdentityMismatch(
                f"{self.root} holds format {body[1]}; this version reads format {FORMAT_VERSION}"
            )
        if body and (body[4], body[5]) == (here.st_dev, here.st_ino):
            ledger = Ledger(body[3], *body[6:9], wanted_s=body[2])
        elif limits is None:
            raise OSError(errno.ESTALE, "the root was replaced while in use", self.root)
        else:
            if packed:
                _log.warning("%s is a copy or damaged: it gets a new uuid", self.root)
            known = b"" if packed else self.uuid
            ledger = Ledger(known or uuid.uuid4().bytes, 0, 0, 0)
        if limits:
            self._apply(limits, ledger)
        ledger.fd, ledger.written = fd, packed
        return ledger

    def _write(self, ledger: Ledger) -> None:
        packed = self._packed(ledger)
        if packed != ledger.written:
            os.pwrite(ledger.fd, packed, 0)
            ledger.written = packed

    def _apply(self, limits: Limits, ledger: Ledger) -> None:
        system = os.statvfs(self.root)
        capacity, floor = limits.capacity_bytes, limits.free_floor_bytes
        if capacity is None and not ledger.capacity_bytes:
            free = system.f_bavail * system.f_frsize
            capacity = (free + segment_file_bytes(self.root)) * 4 // 5
        if floor is None and not ledger.free_floor_bytes:
            floor = system.f_blocks * system.f_frsize // 20
        if capacity is not None and capacity != ledger.capacity_bytes:
            if ledger.capacity_bytes:
                _log.info("%s: capacity %d bytes from now on", self.root, capacity)
            ledger.capacity_bytes = capacity
        if floor is not None:
            ledger.free_floor_bytes = floor

    def _packed(self, ledger: Ledger) -> bytes:
        here = Path(self.root).stat()
        body = _BODY.pack(
            _MAGIC,
            FORMAT_VERSION,
            ledger.wanted_s & 0xFFFFFFFF,
            ledger.uuid,
            here.st_dev,
            here.st_ino,
            ledger.capacity_bytes,
            ledger.free_floor_bytes,
            ledger.used_bytes,
        )
        return body + _CRC.pack(zlib.crc32(body))


def _unpacked(packed: bytes) -> tuple[bytes, int, int, bytes, int, int, int, int, int] | None:
    body, crc = packed[: _BODY.size], packed[_BODY.size :]
    if len(crc) != _CRC.size or _CRC.unpack(crc)[0] != zlib.crc32(body) or body[:8] != _MAGIC:
        return None
    return _BODY.unpack(body)


def _why_not(root: str, error: OSError) -> str:
    """Why a directory cannot be used, in words that say what to mend."""
    try:
        if not stat.S_ISDIR(Path(root).stat().st_mode):
            return f"{root} is not a directory"
    except OSError as found:
        if found.errno == errno.ELOOP:
            return f"{root} is not a directory: its symbolic links form a loop"
        if found.errno == errno.ENOENT and Path(root).is_symlink():
            return f"{root} is not a directory: its symbolic link leads nowhere"
    return (
        f"{root} cannot be used: {error.strerror}; the directory must exist, be mounted and be "
        "writable"
    )


def _lock(fd: int, deadline: Deadline) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if deadline.passed:
                raise TimeoutError(errno.ETIMEDOUT, "the root's lock is held elsewhere") from None
            time.sleep(_POLL_S)
