"""Making room: whole segments of stores that no process writes to any more."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.segment.reclaim import STORE_NAME
from hicache_backends.segment.segment import data_path, index_path, segment_files
from hicache_backends.threefs.punch import delete_file


@dataclass(frozen=True, slots=True)
class Left:
    """A store that was left behind. `used_s`: Unix time of its last use."""

    namespace: str
    directory: str
    used_s: float
    file_bytes: int


def reclaim(left: Sequence[Left], count: int, namespace: str) -> Iterator[tuple[str, int]]:
    """Delete segments until `count` bytes are free or no store that was left behind is left;
    directory and number of each.

    Those of other namespaces than `namespace` go first, then those unused for longest, oldest
    segment first. Another host that does the same at the same time deletes the same. Raises
    OSError.
    """
    freed = 0
    for store in sorted(left, key=lambda store: (store.namespace == namespace, store.used_s)):
        sizes: dict[int, int] = {}
        for number, entry in segment_files(store.directory):
            with contextlib.suppress(FileNotFoundError):
                size = entry.stat(follow_symlinks=False).st_size
                sizes[number] = sizes.get(number, 0) + size
        for number in sorted(sizes):
            if freed >= count:
                return
            delete_segment(store.directory, number)
            freed += sizes[number]
            yield store.directory, number
        remove_store(store.directory)


def delete_segment(directory: str, number: int) -> None:
    """Give the space of both files back, the records first. Raises OSError."""
    delete_file(index_path(directory, number))
    delete_file(data_path(directory, number))


def remove_store(directory: str) -> None:
    """Take away a store without segments, and its namespace with the last store; anything else
    in them stays."""
    store = Path(directory)
    with contextlib.suppress(OSError):
        for path in (*store.glob(".new-*"), *store.glob("adopter-*"), store / "owner"):
            path.unlink(missing_ok=True)
        store.rmdir()
        namespace = store.parent
        if not any(STORE_NAME.fullmatch(path.name) for path in namespace.iterdir()):
            for path in (*namespace.glob(".namespace-*"), namespace / "namespace.msgpack"):
                path.unlink(missing_ok=True)
            namespace.rmdir()
