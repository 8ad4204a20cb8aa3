"""What lies on a medium, read without opening a store: namespaces, stores, pages, damage.

Nothing is changed. Where the root has a lock it is held while stores are looked at, so that none
is opened, copied or deleted meanwhile.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import numpy as np

from hicache_backends.identity import Namespace
from hicache_backends.native_calls import valid_records
from hicache_backends.segment.directory import NAMESPACE_BYTES
from hicache_backends.segment.format import ALIGNMENT, RECORD, RECORD_BYTES
from hicache_backends.segment.plain import plain_size, read_plain
from hicache_backends.segment.reclaim import store_directories
from hicache_backends.segment.segment import data_path, segment_files
from hicache_storage.tools.roots import Root, explained, open_root


@dataclass(frozen=True)
class Records:
    """What an index file holds. `page_bytes`: of all its pages; `damaged`: slots whose records
    are neither empty nor whole."""

    slots: int
    pages: int
    page_bytes: int
    damaged: tuple[int, ...]


@dataclass(frozen=True)
class StoreReport:
    """One store. `file_bytes`: of its segment files. `damaged_records`: neither empty nor whole.
    `in_use_by`: host and process that has it open, "" if nobody has. `idle_s`: seconds since it
    was last written to, opened or closed. `adopted`: its process is gone, another goes on with
    it. `owner_problem`: what is wrong with its file `owner`, "" if nothing is."""

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
    adopted: bool
    owner_problem: str


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
    """One root directory. `kind`: local or 3fs; `cluster`: whose it is, "" for a local one;
    `problem`: what is wrong with its `.medium`, "" if nothing is."""

    root: str
    kind: str
    medium: str
    cluster: str
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
    opened = open_root(str(root))
    with explained(opened.path, "read"), opened.held() as facts:
        found = tuple(_namespaces(opened))
    used = facts.used_bytes
    return MediumReport(
        root=opened.path,
        kind=opened.kind,
        medium=facts.medium,
        cluster=facts.cluster,
        capacity_bytes=facts.capacity_bytes,
        used_bytes=sum(each.file_bytes for each in found) if used is None else used,
        free_bytes=facts.free_bytes,
        problem=facts.problem,
        namespaces=found,
    )


def read_store(root: Root, path: str) -> StoreReport:
    """The report on one store. Raises OSError."""
    return root.run(lambda: _store(root, path))


def read_records(root: Root, path: str, number: int) -> Records:
    """What a segment's index file holds; nothing where it cannot be read."""
    try:
        raw = memoryview(root.records(path, number))
        slots = min(len(raw) // RECORD_BYTES, plain_size(data_path(path, number)) // ALIGNMENT)
    except OSError:
        return Records(0, 0, 0, ())
    packed = raw[: slots * RECORD_BYTES]
    whole = valid_records(packed)
    records = np.frombuffer(packed, RECORD)
    written = np.frombuffer(packed, np.uint64).reshape(-1, RECORD_BYTES // 8).any(axis=1)
    page_bytes = int(records["bytes"][whole].sum(dtype=np.uint64))
    damaged = tuple(np.flatnonzero(written & ~whole).tolist())
    return Records(slots, int(whole.sum()), page_bytes, damaged)


def readable_namespace(root: Root, name: str) -> Namespace | None:
    """The namespace in its readable form, if that is whole and its own."""
    try:
        namespace = Namespace.decode(
            root.run(lambda: read_plain(f"{root.path}/{name}/namespace.msgpack", NAMESPACE_BYTES))
        )
    except (OSError, ValueError, TypeError, msgpack.UnpackException):
        return None
    return namespace if namespace.fingerprint.hex() == name else None


def _namespaces(root: Root) -> Iterator[NamespaceReport]:
    stores: dict[str, list[str]] = {}
    for name, path in root.run(lambda: sorted(store_directories(root.path))):
        stores.setdefault(name, []).append(path)
    for name, paths in stores.items():
        found = tuple(read_store(root, path) for path in paths)
        yield NamespaceReport(name, readable_namespace(root, name), found)


def _store(root: Root, path: str) -> StoreReport:
    holder = root.holder(path)
    files = segment_files(path)
    numbers = sorted({number for number, _ in files})
    counted = [read_records(root, path, number) for number in numbers]
    return StoreReport(
        store=Path(path).name,
        path=path,
        segments=len(numbers),
        slots=sum(records.slots for records in counted),
        pages=sum(records.pages for records in counted),
        page_bytes=sum(records.page_bytes for records in counted),
        file_bytes=sum(_size(entry) for _, entry in files),
        damaged_records=sum(len(records.damaged) for records in counted),
        closed_cleanly=holder.closed_cleanly,
        in_use_by=holder.in_use_by,
        idle_s=holder.idle_s,
        adopted=holder.adopted,
        owner_problem=holder.owner_problem,
    )


def _size(entry: os.DirEntry[str]) -> int:
    """0 for a file that went meanwhile: on 3FS stores can't be held still."""
    with contextlib.suppress(FileNotFoundError):
        return entry.stat(follow_symlinks=False).st_size
    return 0
