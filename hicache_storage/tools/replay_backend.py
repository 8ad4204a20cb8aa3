"""The backend of a replay: what each process opens, and how much room pages take there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from hicache_backends.errors import ConfigError
from hicache_backends.segment.format import RECORD_BYTES
from hicache_backends.segment.segment import stored_bytes
from hicache_backends.table import build_options, load_backend
from hicache_backends.threefs.geometry import Geometry
from hicache_backends.usrbio.mount import find_mount


def backend_options(
    name: str, path: str, given: Mapping[str, str], pages: int, page_bytes: int
) -> dict[str, object]:
    """The options of the backend `name` at `path`, with room for `pages`.

    Raises ConfigError for options that the backend does not take, StorageUnavailable for a path
    that is not on its medium.
    """
    backend = load_backend(name)
    options: dict[str, object] = {**given}
    if backend.path_option:
        options[backend.path_option] = path
    if not {"capacity", "capacity_bytes"} & given.keys():
        options["capacity_bytes"] = pages * _PAGE_ROOM.get(name, _as_it_is)(path, page_bytes)
    build_options(backend.options, options, name)
    return options


def check_paths(name: str, count: int) -> None:
    """Raises ConfigError where a backend that lies nowhere is given paths."""
    if count and not load_backend(name).path_option:
        raise ConfigError(f"the backend {name!r} takes no path")


def _as_it_is(path: str, page_bytes: int) -> int:
    return page_bytes


def _in_slots(path: str, page_bytes: int) -> int:
    return stored_bytes(1, page_bytes)


def _in_chunks(path: str, page_bytes: int) -> int:
    there = path if Path(path).exists() else str(Path(path).parent)
    return Geometry(page_bytes, find_mount(there).chunk_bytes).slot_bytes + RECORD_BYTES


_PAGE_ROOM: Mapping[str, Callable[[str, int], int]] = {"3fs": _in_chunks, "nvme": _in_slots}
"""What a page takes of the capacity at a path, where that is more than its own bytes."""
