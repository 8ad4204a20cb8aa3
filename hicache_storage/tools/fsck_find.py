"""What can be wrong in a root directory, found and changed by nobody."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.segment.reclaim import NAMESPACE_NAME, STORE_NAME
from hicache_backends.segment.segment import data_path, index_path, segment_files
from hicache_storage.config.model import EMBEDDED_DIR
from hicache_storage.tools.media import StoreReport, read_records, readable_namespace
from hicache_storage.tools.roots import Root

DAMAGED = "damaged_records"
HALVES = "half_segments"
DRAFTS = "drafts"
FOREIGN = "foreign_entries"
OWNERS = "unreadable_owners"
NAMESPACES = "unreadable_namespaces"
EMPTY = "empty_namespaces"
MEDIUM = "medium"
KINDS = {
    DAMAGED: "index records that are neither empty nor whole",
    HALVES: "segment files without their other half",
    DRAFTS: "files that were never finished",
    FOREIGN: "entries that are no part of a store; to be looked at and deleted by hand",
    OWNERS: "stores whose file owner is missing or damaged",
    NAMESPACES: "namespaces whose readable form is missing or damaged: their pages are not found",
    EMPTY: "namespaces without a store",
    MEDIUM: "the file .medium is damaged, or came with a copy",
}
"""Each kind of trouble, in words."""

_DRAFT = re.compile(r"\.(?:new|medium|namespace|probe|self-test)-.+")
_OF_A_ROOT = frozenset((".medium", EMBEDDED_DIR, "3fs-virt", "lost+found"))
_OF_A_STORE = re.compile(r"owner|seg-[0-9]{6,10}\.(?:data|index)|adopter-[0-9]{6}")
_EXAMPLES = 5
_DRAFT_S = 300.0
"""A younger draft, or empty namespace, may be in the making."""


@dataclass(frozen=True)
class Trouble:
    """Something of one kind at one path, `count` times."""

    kind: str
    path: str
    count: int = 1
    detail: str = ""


@dataclass(frozen=True)
class Found:
    """A trouble, and whether it is mended by now."""

    trouble: Trouble
    mended: bool = False


def by_kind(
    found: Sequence[Found], kinds: Mapping[str, str], shown: Callable[[Trouble], str]
) -> list[dict[str, Any]]:
    """Each kind of trouble there is: how often, how often mended, a few examples."""
    rows = []
    for kind, words in kinds.items():
        of_kind = [each for each in found if each.trouble.kind == kind]
        if of_kind:
            rows.append(
                {
                    "kind": kind,
                    "what": words,
                    "count": sum(each.trouble.count for each in of_kind),
                    "mended": sum(each.trouble.count for each in of_kind if each.mended),
                    "examples": [shown(each.trouble) for each in of_kind[:_EXAMPLES]],
                }
            )
    return rows


def find_in_store(root: Root, store: StoreReport) -> Iterator[Trouble]:
    """What is wrong in a store. What only its own process may be at is left to that."""
    yield from _damaged(root, store)
    yield from (Trouble(FOREIGN, path) for path in foreign_entries(store.path))
    if not store.in_use_by:
        drafts = (entry.path for entry in _entries(store.path) if _is_draft(entry))
        yield from (Trouble(DRAFTS, path) for path in drafts)
        yield from _halves(store.path)
        if store.owner_problem:
            yield Trouble(OWNERS, store.path, detail=store.owner_problem)


def find_in_root(root: Root) -> Iterator[Trouble]:
    """What is wrong beside the stores."""
    for entry in _entries(root.path):
        if NAMESPACE_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            yield from _in_namespace(root, entry.path)
        elif _is_draft(entry):
            if _is_old(entry.path):
                yield Trouble(DRAFTS, entry.path)
        elif entry.name not in _OF_A_ROOT and not _is_file_at(f"{entry.path}/.medium"):
            yield Trouble(FOREIGN, entry.path)  # another root in this one is none


def foreign_entries(store: str) -> list[str]:
    """Paths in a store's directory that are no part of a store."""
    return [
        entry.path
        for entry in _entries(store)
        if not (_OF_A_STORE.fullmatch(entry.name) and _is_file(entry)) and not _is_draft(entry)
    ]


def damaged_records(root: Root, store: str, number: int) -> tuple[int, ...]:
    """Slots of a segment whose records are damaged, twice: the first time one may be just being
    written."""
    first = read_records(root, store, number).damaged
    again = read_records(root, store, number).damaged if first else ()
    return tuple(sorted({*first} & {*again}))


def _damaged(root: Root, store: StoreReport) -> Iterator[Trouble]:
    if not store.damaged_records:
        return
    for number in sorted({number for number, _ in segment_files(store.path)}):
        if slots := damaged_records(root, store.path, number):
            yield Trouble(DAMAGED, index_path(store.path, number), len(slots))


def _halves(store: str) -> Iterator[Trouble]:
    names = {entry.path: number for number, entry in segment_files(store)}
    for path, number in sorted(names.items()):
        if not {data_path(store, number), index_path(store, number)} <= names.keys():
            yield Trouble(HALVES, path)


def _in_namespace(root: Root, path: str) -> Iterator[Trouble]:
    stores = 0
    for entry in _entries(path):
        if STORE_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False):
            stores += 1
        elif _is_draft(entry):
            if _is_old(entry.path):
                yield Trouble(DRAFTS, entry.path)
        elif entry.name != "namespace.msgpack":
            yield Trouble(FOREIGN, entry.path)
    if not stores:
        if _is_old(path):
            yield Trouble(EMPTY, path)
    elif readable_namespace(root, Path(path).name) is None:
        yield Trouble(NAMESPACES, path)


def _entries(directory: str) -> list[os.DirEntry[str]]:
    """In order; none where the directory is gone by now."""
    try:
        with os.scandir(directory) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def _is_draft(entry: os.DirEntry[str]) -> bool:
    return bool(_DRAFT.fullmatch(entry.name)) and _is_file(entry)


def _is_file(entry: os.DirEntry[str]) -> bool:
    return entry.is_file(follow_symlinks=False)


def _is_file_at(path: str) -> bool:
    try:
        return stat.S_ISREG(Path(path).lstat().st_mode)
    except OSError:
        return False


def _is_old(path: str) -> bool:
    try:
        return time.time() - Path(path).lstat().st_mtime > _DRAFT_S
    except FileNotFoundError:
        return False
