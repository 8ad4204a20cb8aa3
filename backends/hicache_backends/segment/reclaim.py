"""Making room on a root: whole segments of stores that no process has open."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.segment.owner import OwnerFile
from hicache_backends.segment.segment import delete_segment, segment_files

NAMESPACE_NAME = re.compile(r"[0-9a-f]{64}")
STORE_NAME = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class _Dead:
    """A store that nobody has open, with its lock."""

    namespace: str
    directory: str
    lock: OwnerFile
    used_s: float


def store_directories(root: str, namespace: str | None = None) -> Iterator[tuple[str, str]]:
    """Namespace name and path of each store on a root; of one namespace, or of all."""
    names = [namespace] if namespace else _names(root, NAMESPACE_NAME)
    for name in names:
        for store in _names(f"{root}/{name}", STORE_NAME):
            yield name, f"{root}/{name}/{store}"


def segment_file_bytes(root: str) -> int:
    """The sum of all segment files on a root, their sizes counted."""
    entries = (e for _, store in store_directories(root) for _, e in segment_files(store))
    return sum(status.st_size for status in map(_status, entries) if status)


def live_stores(root: str) -> int:
    """Stores on a root that a process has open; the root is locked."""
    locks = [OwnerFile.take(directory) for _, directory in store_directories(root)]
    for lock in locks:
        if lock:
            lock.close()
    return locks.count(None)


def reclaim(root: str, count: int, namespace: str) -> tuple[int, int]:
    """Delete segments until `count` bytes are free or no dead store is left; the root is locked.

    Dead stores of other namespaces than `namespace` go first, then those unused for longest,
    oldest segment first. Bytes and segments deleted.
    """
    freed = segments = 0
    dead = sorted(_dead(root), key=lambda store: (store.namespace == namespace, store.used_s))
    try:
        for store in dead:
            for number, size in _oldest_first(store.directory):
                if freed >= count:
                    return freed, segments
                delete_segment(store.directory, number)
                freed, segments = freed + size, segments + 1
            _remove_store(store.directory)
    finally:
        for store in dead:
            store.lock.close()
    return freed, segments


def _dead(root: str) -> Iterator[_Dead]:
    for namespace, directory in store_directories(root):
        lock = OwnerFile.take(directory)
        if lock:
            yield _Dead(namespace, directory, lock, _last_use_s(directory, lock))


def _last_use_s(directory: str, lock: OwnerFile) -> float:
    """When the store was opened, closed, written to, or read by another process, last."""
    written = (_status(entry) for _, entry in segment_files(directory))
    return max((os.fstat(lock.fd).st_mtime, *(s.st_mtime for s in written if s)))


def _oldest_first(directory: str) -> list[tuple[int, int]]:
    """Number and bytes of each segment of a store, the one written longest ago first."""
    sizes: dict[int, int] = {}
    written_s: dict[int, float] = {}
    for number, entry in segment_files(directory):
        if status := _status(entry):
            sizes[number] = sizes.get(number, 0) + status.st_size
            written_s[number] = max(written_s.get(number, 0.0), status.st_mtime)
    return [(number, sizes[number]) for number in sorted(sizes, key=written_s.__getitem__)]


def _remove_store(directory: str) -> None:
    """Take away the directories of a store without segments; anything else in them stays."""
    with contextlib.suppress(OSError):
        _remove_files(Path(directory), "owner", ".probe-*")
        namespace = Path(directory).parent
        if not any(_names(str(namespace), STORE_NAME)):
            _remove_files(namespace, "namespace.msgpack", ".namespace-*")


def _remove_files(directory: Path, *patterns: str) -> None:
    for pattern in patterns:
        for path in directory.glob(pattern):
            path.unlink(missing_ok=True)
    directory.rmdir()


def _names(directory: str, pattern: re.Pattern[str]) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            return [e.name for e in entries if pattern.fullmatch(e.name) and e.is_dir()]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _status(entry: os.DirEntry[str]) -> os.stat_result | None:
    try:
        return entry.stat(follow_symlinks=False)
    except FileNotFoundError:
        return None
