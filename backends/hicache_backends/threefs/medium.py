"""A directory on 3FS as a medium. No lock holds across hosts, so nothing is shared that two could
change: what is used is the sum of what each store's own process, or its files, say.

`<root>/.medium` holds the limits, in the form of a local medium's with a format version of its
own, and the cluster's name: neither backend takes the other's directory.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket
import struct
import threading
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.errors import IdentityMismatch, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.segment.directory import StoreDirectory, identify
from hicache_backends.segment.medium import Limits, Medium
from hicache_backends.segment.plain import open_plain
from hicache_backends.segment.reclaim import store_directories
from hicache_backends.segment.segment import segment_files
from hicache_backends.threefs import adoption
from hicache_backends.threefs.directory import SignedDirectory
from hicache_backends.threefs.reclaim import Left, reclaim
from hicache_backends.threefs.tenure import LEASE_S, Tenure
from hicache_backends.usrbio.mount import check_mounted

_log = logging.getLogger(__name__)

_MAGIC = b"HICACHE\0"
FORMAT_VERSION = 0x3F50001
"""Far from any of a local medium."""
_BODY = struct.Struct("<8sII16sQQQQQ")
_NAME = struct.Struct("<128s")
_CRC = struct.Struct("<I")
_MEDIUM_BYTES = 4096
_MOST_LEFT_BYTES = 1 << 40
_WANTED_S = 60.0


@dataclass(frozen=True, slots=True)
class MediumFile:
    """What `.medium` says."""

    uuid: bytes
    cluster: str
    capacity_bytes: int
    free_floor_bytes: int

    def pack(self) -> bytes:
        limits = (self.capacity_bytes, self.free_floor_bytes)
        body = _BODY.pack(_MAGIC, FORMAT_VERSION, 0, self.uuid, 0, 0, *limits, 0)
        name = _NAME.pack(self.cluster.encode())
        packed = body + _CRC.pack(zlib.crc32(body)) + name + _CRC.pack(zlib.crc32(name))
        return packed.ljust(_MEDIUM_BYTES, b"\0")

    @classmethod
    def unpack(cls, packed: bytes) -> MediumFile | None:
        """None for what is damaged. Raises IdentityMismatch for what another backend wrote."""
        body, rest = packed[: _BODY.size], packed[_BODY.size + _CRC.size :]
        name = rest[: _NAME.size]
        crcs = packed[_BODY.size :][: _CRC.size], rest[_NAME.size :][: _CRC.size]
        if len(body) < _BODY.size or crcs[0] != _CRC.pack(zlib.crc32(body)) or body[:8] != _MAGIC:
            return None
        fields = _BODY.unpack(body)
        if fields[1] != FORMAT_VERSION:
            raise IdentityMismatch(
                f"the directory holds pages in format {fields[1]}, which the backend 3fs does not "
                "read: nvme wrote it, or another version; give 3fs a directory of its own"
            )
        if crcs[1] != _CRC.pack(zlib.crc32(name)):
            return None
        cluster = name.rstrip(b"\0").decode(errors="replace")
        return cls(fields[3], cluster, fields[6], fields[7])

    @classmethod
    def read(cls, path: str) -> MediumFile | None:
        """What the file says, past the page cache. Raises OSError, and as `unpack`."""
        fd = open_plain(path, os.O_RDONLY | os.O_DIRECT)
        try:
            return cls.unpack(os.pread(fd, _MEDIUM_BYTES, 0))
        finally:
            os.close(fd)

    def overwrite(self, path: str) -> None:
        """In place: other hosts go on for a while with the file that they know by this name.
        Raises OSError."""
        fd = open_plain(path, os.O_RDWR | os.O_DIRECT)
        try:
            os.pwrite(fd, self.pack(), 0)
        finally:
            os.close(fd)


class ThreeFsMedium(Medium):
    """A directory on 3FS that this process may use. Thread safe; holds no descriptor."""

    def __init__(self, root: str, cluster: str, slot_bytes: int) -> None:
        """`slot_bytes`: what a page takes of a capacity, its record included."""
        super().__init__(root)
        self._cluster = cluster
        self._slot_bytes = slot_bytes
        self._store: SignedDirectory | None = None
        self._capacity = self._floor = self._used = 0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, root: str, cluster: str, limits: Limits, slot_bytes: int) -> ThreeFsMedium:
        """Raises OSError, and IdentityMismatch where the directory is another cluster's."""
        medium = cls(root, cluster, slot_bytes)
        inode = Path(root).stat().st_ino  # the same on every host, wherever it is mounted
        name = cluster.encode() + inode.to_bytes(8, "little")
        medium.uuid = hashlib.blake2b(name, digest_size=16, person=b"hicache-3fs").digest()
        medium._settle(limits)
        medium._used = medium._count()
        return medium

    def open_store(self, namespace: Namespace, deadline: Deadline) -> StoreDirectory:
        """A new one: a store has one writer for life."""
        parent = f"{self.root}/{namespace.fingerprint.hex()}"
        while True:
            identify(self.root, namespace)
            with contextlib.suppress(FileNotFoundError):  # taken away meanwhile as it was empty
                self._store = SignedDirectory.make(parent, self._slot_bytes)
                return self._store

    def open_again(
        self, namespace: Namespace, lost: StoreDirectory, deadline: Deadline
    ) -> StoreDirectory:
        check_mounted(self.root)
        Path(self.root).mkdir(exist_ok=True)
        self._settle(Limits(self._capacity, self._floor))
        fresh = self.open_store(namespace, deadline)
        fresh.boots, fresh.next_number = lost.boots, lost.next_number
        return fresh

    def adopt(self, namespace: Namespace, deadline: Deadline) -> list[str]:
        """Those that this machine's processes left behind, so that a process that is started again
        goes on with what it had."""
        store = self._store
        assert store is not None  # noqa: S101 - a volume opens its store first
        name, host = namespace.fingerprint.hex(), socket.gethostname()
        adopted = []
        for directory, tenure in self._tenures(name):
            if tenure and tenure.is_over and tenure.here.host == host:
                with contextlib.suppress(OSError):
                    if adoption.claim(directory, store.uuid):
                        adopted.append(directory)
        return adopted

    def abandoned(self, namespace: Namespace, deadline: Deadline) -> list[str]:
        """The ones used last, as far as their pages are worth the time to read of them."""
        left = [each for each in self._left() if each.namespace == namespace.fingerprint.hex()]
        left.sort(key=lambda store: store.used_s, reverse=True)
        directories, total = [], 0
        for store in left:
            total += store.file_bytes
            if total > _MOST_LEFT_BYTES or deadline.passed:
                _log.warning("%s: some stores that were left behind are not looked into", self.root)
                break
            directories.append(store.directory)
        return directories

    @contextlib.contextmanager
    def reserve(
        self, most: int, unit: int, namespace: str, own: int, deadline: Deadline
    ) -> Iterator[tuple[int, bool]]:
        """Two that reserve the last room at the same time both see the other's, and get none."""
        store = self._store
        assert store is not None  # noqa: S101 - a volume opens its store before it grows
        with self._lock:
            check_mounted(self.root)
            if self._room() < most:
                for directory, number in reclaim(self._left(), most - self._room(), namespace):
                    self.reclaimed_segments += 1
                    self.on_reclaim(directory, number)
                self._used = self._count()
            granted = max(0, min(most, self._room())) // unit * unit
            if self._is_to_yield(store, own, most, granted):
                yield 0, True
                return
            store.pledged_bytes = own + granted
            try:
                store.sign()
                self._used = self._count()
                if granted and self._used > self._capacity:
                    granted, store.pledged_bytes = 0, 0
                    store.sign()
                yield granted, False
            finally:
                store.pledged_bytes = 0

    @contextlib.contextmanager
    def release(self, size: int, deadline: Deadline) -> Iterator[None]:
        yield
        self._used = max(0, self._used - size)

    def recount(self, deadline: Deadline) -> None:
        self._used = self._count()

    def figures(self) -> tuple[int, int]:
        """As of the last segment that was made."""
        return self._capacity, self._used

    def _settle(self, limits: Limits) -> None:
        """Read `.medium`, or write it where it is missing, damaged, or says other limits."""
        path = Path(self.root, ".medium")
        try:
            said = MediumFile.read(str(path))
        except FileNotFoundError:
            said = None
        if said and said.cluster != self._cluster:
            raise IdentityMismatch(
                f"{self.root} belongs to the cluster {said.cluster!r}, not to {self._cluster!r}: "
                "mend 3fs.cluster_id or 3fs.mount_point"
            )
        system = os.statvfs(self.root)
        self._capacity = limits.capacity_bytes or (said.capacity_bytes if said else 0)
        if not self._capacity:
            self._capacity = (system.f_bavail * system.f_frsize + self._count()) * 4 // 5
        floor = limits.free_floor_bytes
        if floor is None:
            floor = said.free_floor_bytes if said else system.f_blocks * system.f_frsize // 20
        self._floor = floor
        wanted = MediumFile(self.uuid, self._cluster, self._capacity, floor)
        if said and said != wanted:
            wanted.overwrite(str(path))
        elif not said:
            draft = path.with_name(f".medium-{uuid.uuid4().hex}")
            draft.write_bytes(wanted.pack())
            draft.replace(path)

    def _room(self) -> int:
        system = os.statvfs(self.root)
        free = system.f_bavail * system.f_frsize - self._floor
        return min(self._capacity - self._used, free)

    def _count(self) -> int:
        """Bytes of all segments: of a store in use as its process says, of the others as their
        files say."""
        own = self._store
        total = own.file_bytes if own else 0
        for directory, tenure in self._tenures():
            if own and directory == own.path:
                continue
            if tenure and not tenure.is_over:
                total += tenure.file_bytes
            elif not adoption.is_adopted(directory):  # else its adopter's own bytes tell
                total += segment_bytes(directory)
        return total

    def _left(self) -> list[Left]:
        """The stores that no process writes to any more."""
        left = []
        for directory, tenure in self._tenures():
            used_s = _touched_s(directory)
            if tenure is None and time.time() - used_s < LEASE_S:
                continue  # about to be signed for the first time
            if (tenure is None or tenure.is_over) and not adoption.is_adopted(directory):
                used_s = max(used_s, tenure.signed_s if tenure else 0)
                namespace = Path(directory).parent.name
                left.append(Left(namespace, directory, used_s, segment_bytes(directory)))
        return left

    def _tenures(self, namespace: str | None = None) -> Iterator[tuple[str, Tenure | None]]:
        for _, directory in store_directories(self.root, namespace):
            try:
                yield directory, Tenure.read(directory)
            except OSError:
                yield directory, None

    def _is_to_yield(self, store: SignedDirectory, own: int, segment: int, granted: int) -> bool:
        """As a local medium decides it; who has less than half its share says so in its own
        `owner` file."""
        alive = [t for _, t in self._tenures() if t and not t.is_over and t.store != store.uuid]
        share = self._capacity // (len(alive) + 1)
        store.wanted_s = int(time.time()) if 2 * (own + granted) < share and not granted else 0
        wanted = any(0 <= time.time() - t.wanted_s < _WANTED_S for t in alive)
        if wanted and 2 * own >= share and own - segment >= share:
            return True
        return own > share and self._used > self._capacity


def segment_bytes(directory: str) -> int:
    """The sum of a store's segment files."""
    total = 0
    for _, entry in segment_files(directory):
        with contextlib.suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_size
    return total


def _touched_s(directory: str) -> float:
    """When the store was signed, or read by another process, last."""
    for path in (f"{directory}/owner", directory):
        with contextlib.suppress(OSError):
            return Path(path).stat().st_mtime
    return time.time()


def explained(open_one: Callable[[], ThreeFsMedium], root: str) -> ThreeFsMedium:
    """Raises StorageUnavailable for an OSError."""
    try:
        return open_one()
    except OSError as error:
        raise StorageUnavailable(
            f"{root} cannot be used: {error.strerror}; this user must be able to write there"
        ) from error
