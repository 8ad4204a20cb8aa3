"""The directory of a namespace on a root, and the choice of the store that a process opens."""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from pathlib import Path

import msgpack

from hicache_backends.errors import IdentityMismatch
from hicache_backends.identity import Namespace
from hicache_backends.segment.owner import Owner, OwnerFile
from hicache_backends.segment.plain import NotPlain, read_plain
from hicache_backends.segment.reclaim import store_directories
from hicache_backends.segment.segment import segment_files

_log = logging.getLogger(__name__)

NAMESPACE_BYTES = 1 << 16
"""No `namespace.msgpack` has more."""


class StoreDirectory(ABC):
    """A store that this process has open, and what its `owner` file says: how often it was
    opened, the slots of each segment by number, the number of the next segment.
    `adopted_pages`: in stores that this process has taken over."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.boots = 0
        self.slots: dict[int, int] = {}
        self.next_number = 1
        self.adopted_pages = 0

    @property
    def uuid(self) -> bytes:
        return bytes.fromhex(Path(self.path).name)

    @property
    @abstractmethod
    def vanished(self) -> bool:
        """Whether it was deleted from outside."""

    @abstractmethod
    def sign(self, *, clean: bool = False) -> None:
        """Write the `owner` file. Raises OSError."""

    @abstractmethod
    def close(self) -> None:
        """Let others have it. Closing again is fine."""


class LockedDirectory(StoreDirectory):
    """A store of the process that holds the lock on its `owner` file."""

    def __init__(self, path: str, lock: OwnerFile) -> None:
        super().__init__(path)
        self.lock = lock

    @property
    def vanished(self) -> bool:
        return self.lock.vanished

    def close(self) -> None:
        self.lock.close()

    def sign(self, *, clean: bool = False) -> None:
        status = Path(self.path).stat()
        self.lock.write(
            Owner(
                self.uuid,
                status.st_dev,
                status.st_ino,
                self.boots,
                clean,
                self.slots,
                self.next_number,
            )
        )


def open_store(root: str, namespace: Namespace) -> LockedDirectory:
    """The largest store of the namespace that no process has open, else a new one; the root is
    locked.

    Raises IdentityMismatch, and OSError.
    """
    name = namespace.fingerprint.hex()
    identify(root, namespace)
    free = _unlocked_stores(root, name)
    free.sort(key=lambda store: len(segment_files(store.path)))
    chosen = free.pop() if free else _new_store(f"{root}/{name}/{uuid.uuid4().hex}")
    for store in free:
        store.close()
    return chosen


def open_again(root: str, namespace: Namespace, lost: StoreDirectory) -> LockedDirectory:
    """An empty store in the place of one that was deleted from outside; the root is locked.
    Raises OSError."""
    identify(root, namespace)
    fresh = _new_store(lost.path)
    fresh.boots, fresh.next_number = lost.boots, lost.next_number
    fresh.sign()
    return fresh


def unlocked_stores(root: str, namespace: Namespace) -> list[str]:
    """The directory of each store of the namespace that no process has open right now; the root
    is locked."""
    stores = _unlocked_stores(root, namespace.fingerprint.hex())
    for store in stores:
        store.close()
    return [store.path for store in stores]


def identify(root: str, namespace: Namespace) -> None:
    """Make the namespace's directory, or compare what it says with the namespace."""
    directory = Path(root, namespace.fingerprint.hex())
    file = directory / "namespace.msgpack"
    directory.mkdir(exist_ok=True)
    if not file.exists():
        draft = directory / f".namespace-{uuid.uuid4().hex}"
        draft.write_bytes(namespace.encode())
        draft.replace(file)
    try:
        stored = read_plain(str(file), NAMESPACE_BYTES)
        if stored == namespace.encode():
            return
        found: object = Namespace.decode(stored)
    except (NotPlain, ValueError, TypeError, msgpack.UnpackException):
        found = "something unreadable"
    raise IdentityMismatch(f"{directory} was written for {found}, not for {namespace}")


def _unlocked_stores(root: str, name: str) -> list[LockedDirectory]:
    stores = []
    for _, path in store_directories(root, name):
        lock = OwnerFile.take(path)
        if lock:
            stores.append(_identified(path, lock))
    return stores


def _identified(path: str, lock: OwnerFile) -> LockedDirectory:
    """The store at `path`; a copy of another store gets a uuid of its own."""
    store = LockedDirectory(path, lock)
    owner = lock.read()
    if owner is None:
        return store
    store.boots, store.slots = owner.boots, owner.slots
    store.next_number = max(owner.next_number, 1 + max(owner.slots, default=0))
    status = Path(path).stat()
    if (owner.store, owner.device, owner.inode) != (store.uuid, status.st_dev, status.st_ino):
        store.path = str(Path(path).with_name(uuid.uuid4().hex))
        _log.warning("%s is a copy of another store: it becomes %s", path, store.path)
        Path(path).rename(store.path)
        store.sign(clean=owner.clean)
    return store


def _new_store(path: str) -> LockedDirectory:
    Path(path).mkdir()
    return LockedDirectory(path, OwnerFile.create(path))
