"""What lies on a medium, read without opening a store: namespaces, stores, pages, damage.

Nothing is changed. The root's lock is held while stores are looked at, so that none is opened,
copied or deleted meanwhile.
"""

from __future__ import annotations

import dataclasses
import errno
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.native_calls import valid_records
from hicache_backends.segment.directory import NAMESPACE_BYTES
from hicache_backends.segment.format import ALIGNMENT, RECORD, RECORD_BYTES
from hicache_backends.segment.local_medium import LocalMedium
from hicache_backends.segment.owner import OWNER_BYTES, OwnerFile
from hicache_backends.segment.plain import plain_size, read_plain
from hicache_backends.segment.reclaim import store_directories
from hicache_backends.segment.segment import data_path, index_path, segment_files

LOCK_TIMEOUT_MS = 5000


@dataclass(frozen=True)
class StoreReport:
    """One store. `file_bytes`: of its segment files. `damaged_records`: neither empty nor whole.
    `in_use_by`: host and process that has it open, "" if nobody has. `idle_s`: seconds since it
    was last written to, opened or closed."""

    store: str
    path: str
    segments: int
    slots: int
    pages: int
    page_bytes: int
    file_bytes: int
    damaged_records: int
    closed_cleanly: bool
    in_use_by: str
    idle_s: float


@dataclass(frozen=True)
class NamespaceReport:
    """One namespace. `namespace` is None where its readable form is missing or damaged."""

    fingerprint: str
    namespace: Namespace | None
    stores: tuple[StoreReport, ...]

    @property
    def pages(self) -> int:
        return sum(store.pages for store in self.stores)

    @property
    def file_bytes(self) -> int:
        return sum(store.file_bytes for store in self.stores)

    @property
    def in_use(self) -> bool:
        return any(store.in_use_by for store in self.stores)


@dataclass(frozen=True)
class MediumReport:
    """One root directory. `problem`: what is wrong with its `.medium`, "" if nothing is."""

    root: str
    medium: str
    capacity_bytes: int
    used_bytes: int
    free_bytes: int
    problem: str
    namespaces: tuple[NamespaceReport, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return dataclasses.asdict(self)


def read_medium(root: str | Path) -> MediumReport:
    """The report on a root directory. Raises ConfigError where it is none, StorageUnavailable
    where it can't be read."""
    root = str(root)
    if not Path(root, ".medium").is_file():
        raise ConfigError(f"{root} holds no store: it has no file .medium")
    medium = LocalMedium(root)
    try:
        free_bytes = shutil.disk_usage(root).free
        try:
            with medium.locked(Deadline.after_ms(LOCK_TIMEOUT_MS)) as ledger:
                found = tuple(_namespaces(root))
                name, capacity, used = ledger.uuid.hex(), ledger.capacity_bytes, ledger.used_bytes
                return MediumReport(root, name, capacity, used, free_bytes, "", found)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
            problem = "a copy of another directory, or damaged: it gets a new uuid when opened"
            return MediumReport(root, "", 0, 0, free_bytes, problem, tuple(_namespaces(root)))
    except OSError as error:
        raise StorageUnavailable(f"{root} cannot be read: {error.strerror}") from error


def _namespaces(root: str) -> Iterator[NamespaceReport]:
    stores: dict[str, list[str]] = {}
    for name, path in sorted(store_directories(root)):
        stores.setdefault(name, []).append(path)
    for name, paths in stores.items():
        yield NamespaceReport(name, _readable(root, name), tuple(map(_store, paths)))


def _readable(root: str, name: str) -> Namespace | None:
    """The namespace in its readable form, if that is whole and its own."""
    try:
        namespace = Namespace.decode(
            read_plain(f"{root}/{name}/namespace.msgpack", NAMESPACE_BYTES)
        )
    except (OSError, ValueError, TypeError, msgpack.UnpackException):
        return None
    return namespace if namespace.fingerprint.hex() == name else None


def _store(path: str) -> StoreReport:
    owner = _owner(path)
    files = segment_files(path)
    sizes = {entry.name: entry.stat(follow_symlinks=False).st_size for _, entry in files}
    numbers = sorted({number for number, _ in files})
    counted = [_records(path, number) for number in numbers]
    newest_s = max(p.lstat().st_mtime for p in [Path(path), *Path(path).iterdir()])
    return StoreReport(
        store=Path(path).name,
        path=path,
        segments=len(numbers),
        slots=sum(slots for slots, _, _, _ in counted),
        pages=sum(pages for _, pages, _, _ in counted),
        page_bytes=sum(size for _, _, size, _ in counted),
        file_bytes=sum(sizes.values()),
        damaged_records=sum(damaged for _, _, _, damaged in counted),
        closed_cleanly=bool(owner.get("clean")),
        in_use_by=_holder(path, owner),
        idle_s=round(max(0.0, time.time() - newest_s), 1),
    )


def _records(path: str, number: int) -> tuple[int, int, int, int]:
    """Slots, pages, bytes of pages and damaged records of a segment."""
    try:
        slots = plain_size(data_path(path, number)) // ALIGNMENT
        raw = read_plain(index_path(path, number), slots * RECORD_BYTES)
    except OSError:
        return 0, 0, 0, 0
    packed = memoryview(raw)[: len(raw) // RECORD_BYTES * RECORD_BYTES]
    whole = valid_records(packed)
    records = np.frombuffer(packed, RECORD)
    written = np.frombuffer(packed, np.uint64).reshape(-1, RECORD_BYTES // 8).any(axis=1)
    page_bytes = int(records["bytes"][whole].sum(dtype=np.uint64))
    return len(records), int(whole.sum()), page_bytes, int((written & ~whole).sum())


def _owner(path: str) -> dict[str, Any]:
    try:
        raw = msgpack.unpackb(read_plain(f"{path}/owner", OWNER_BYTES), strict_map_key=False)
    except (OSError, ValueError, msgpack.UnpackException):
        return {}
    return raw if isinstance(raw, dict) else {}


def _holder(path: str, owner: dict[str, Any]) -> str:
    """Who has the store open: asked by its lock, named by what its owner file says."""
    if Path(path, "owner").is_symlink() or not Path(path, "owner").is_file():
        return ""
    lock = OwnerFile.take(path)
    if lock is None:
        return f"{owner.get('host', 'unknown host')}, process {owner.get('pid', 'unknown')}"
    lock.close()
    return ""
