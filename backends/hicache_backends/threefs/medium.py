"""A directory on 3FS as a medium. No lock holds across hosts, so nothing is shared that two could
change: what is used is the sum of what each store's own process, or its files, say."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.errors import IdentityMismatch, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.segment.directory import StoreDirectory, identify
from hicache_backends.segment.medium import Limits, Medium
from hicache_backends.threefs import adoption
from hicache_backends.threefs.census import Census
from hicache_backends.threefs.directory import SignedDirectory
from hicache_backends.threefs.medium_file import MediumFile
from hicache_backends.threefs.reclaim import reclaim
from hicache_backends.usrbio.mount import check_mounted

_log = logging.getLogger(__name__)

_MOST_LEFT_BYTES = 1 << 40
_WANTED_S = 60.0
_CENSUS_REUSE = 5.0
"""A census is good for so many times what it took: it asks every process of the cluster."""
_AMPLE_SEGMENTS = 64
_FULL = (errno.ENOSPC, errno.EDQUOT)
_NO_RIGHTS = (errno.EACCES, errno.EPERM, errno.EROFS)


class ThreeFsMedium(Medium):
    """A directory on 3FS that this process may use. Thread safe; holds no descriptor."""

    def __init__(self, root: str, cluster: str, slot_bytes: int) -> None:
        """`slot_bytes`: what a page takes of a capacity, its record included."""
        super().__init__(root)
        self._cluster = cluster
        self._slot_bytes = slot_bytes
        self._store: SignedDirectory | None = None
        self._capacity = self._floor = self._used = 0
        self._census_until_s = 0.0
        self._lock = threading.Lock()

    @classmethod
    def open(cls, root: str, cluster: str, limits: Limits, slot_bytes: int) -> ThreeFsMedium:
        """Raises OSError, and IdentityMismatch where the directory is another cluster's."""
        medium = cls(root, cluster, slot_bytes)
        inode = Path(root).stat().st_ino  # the same on every host, wherever it is mounted
        name = cluster.encode() + inode.to_bytes(8, "little")
        medium.uuid = hashlib.blake2b(name, digest_size=16, person=b"hicache-3fs").digest()
        medium._settle(limits)
        medium._take_census()
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
        for directory, tenure in Census.take(self.root, name).stores:
            if tenure and tenure.is_over and tenure.here.host == host:
                with contextlib.suppress(OSError):
                    if adoption.claim(directory, store.uuid):
                        adopted.append(directory)
        return adopted

    def abandoned(self, namespace: Namespace, deadline: Deadline) -> list[str]:
        """The ones used last, as far as their pages are worth the time to read of them."""
        left = Census.take(self.root, namespace.fingerprint.hex()).left()
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
            ample = self._is_ample(most)
            if not ample:
                census = self._make_room(most, namespace)
            granted = max(0, min(most, self._room())) // unit * unit
            if not ample and self._is_to_yield(census, store, own, most, granted):
                yield 0, True
                return
            store.pledged_bytes = own + granted
            try:
                store.sign()
                self._used += granted
                if granted and not ample and self._take_census() and self._used > self._capacity:
                    granted, store.pledged_bytes = 0, 0
                    store.sign()
                yield granted, False
            finally:
                store.pledged_bytes = 0

    def _make_room(self, most: int, namespace: str) -> Census:
        """Delete of what was left behind where there is less room than `most`; all that is left."""
        census = self._take_census()
        if self._room() < most:
            for directory, number in reclaim(census.left(), most - self._room(), namespace):
                self.reclaimed_segments += 1
                self.on_reclaim(directory, number)
            census = self._take_census()
        return census

    @contextlib.contextmanager
    def release(self, size: int, deadline: Deadline) -> Iterator[None]:
        yield
        self._used = max(0, self._used - size)

    def recount(self, deadline: Deadline) -> None:
        self._take_census()

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
            self._take_census()
            self._capacity = (system.f_bavail * system.f_frsize + self._used) * 4 // 5
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

    def _take_census(self) -> Census:
        began_s = time.monotonic()
        census = Census.take(self.root)
        self._used = census.used_bytes(self._store)
        now_s = time.monotonic()
        self._census_until_s = now_s + _CENSUS_REUSE * (now_s - began_s)
        return census

    def _is_ample(self, segment: int) -> bool:
        """Whether there is so much room that nobody needs to be asked about it."""
        fresh = time.monotonic() < self._census_until_s
        return fresh and self._room() >= _AMPLE_SEGMENTS * segment

    def _is_to_yield(
        self, census: Census, store: SignedDirectory, own: int, segment: int, granted: int
    ) -> bool:
        """As a local medium decides it; who has less than half its share says so in its own
        `owner` file."""
        others = census.writers(store)
        share = self._capacity // (len(others) + 1)
        store.wanted_s = int(time.time()) if 2 * (own + granted) < share and not granted else 0
        wanted = any(0 <= time.time() - each.wanted_s < _WANTED_S for each in others)
        if wanted and 2 * own >= share and own - segment >= share:
            return True
        return own > share and self._used > self._capacity


def explained(open_one: Callable[[], ThreeFsMedium], root: str) -> ThreeFsMedium:
    """Raises StorageUnavailable for an OSError."""
    try:
        return open_one()
    except OSError as error:
        to_do = ""
        if error.errno in _NO_RIGHTS:
            to_do = "; this user must be able to write there"
        elif error.errno in _FULL:
            to_do = "; free some space, as by `hicache-storage fsck --delete-left`"
        raise StorageUnavailable(f"{root} cannot be used: {error.strerror}{to_do}") from error
