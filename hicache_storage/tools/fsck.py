"""Looking a root directory through for what went wrong, and mending what may be mended.

A store that a process uses is never touched; a page is never written. What else knows of pages,
such as a registry, adds its findings to those of `check_root`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hicache_backends.identity import Namespace
from hicache_backends.segment.reclaim import store_directories
from hicache_storage.tools.clearing import delete_store
from hicache_storage.tools.fsck_find import (
    DAMAGED,
    DRAFTS,
    EMPTY,
    HALVES,
    KINDS,
    MEDIUM,
    NAMESPACES,
    Found,
    Trouble,
    by_kind,
    damaged_records,
    find_in_root,
    find_in_store,
)
from hicache_storage.tools.media import StoreReport, read_store
from hicache_storage.tools.roots import Root, explained

_IN_STORES = (DAMAGED, HALVES, DRAFTS)
Known = Callable[[str], Namespace | None]
"""The namespace of a fingerprint's digits, as somebody else knows it."""


def _nobody_knows(fingerprint: str) -> None:
    return None


@dataclass(frozen=True)
class Orders:
    """What may be changed. `repair`: drafts, halves and damaged records of stores that nobody
    uses go; `delete_left`: so do stores that were left behind, unused for `idle_s` seconds."""

    repair: bool = False
    delete_left: bool = False
    idle_s: float = 0.0


@dataclass(frozen=True)
class LeftStore:
    """A store whose process is gone. `adopted`: another process goes on with it. `why_kept`:
    though it was to be deleted."""

    path: str
    pages: int
    file_bytes: int
    idle_s: float
    adopted: bool
    closed_cleanly: bool
    deleted: bool = False
    why_kept: str = ""


@dataclass
class RootCheck:
    """What is in a root, and what is wrong. `in_use`: stores that a process writes to."""

    root: str
    kind: str
    stores: int = 0
    in_use: int = 0
    pages: int = 0
    file_bytes: int = 0
    found: list[Found] = field(default_factory=list)
    left: list[LeftStore] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong any more; a store that was left behind is not wrong."""
        return all(found.mended for found in self.found)

    def to_json(self) -> dict[str, Any]:
        """Plain values by name; the troubles counted by kind, with examples."""
        plain = dataclasses.asdict(self)
        del plain["found"]
        return {**plain, "ok": self.ok, "troubles": self.by_kind()}

    def by_kind(self) -> list[dict[str, Any]]:
        """Each kind of trouble there is: how often, how often mended, a few of its paths."""
        return by_kind(self.found, KINDS, self._shown)

    def _shown(self, trouble: Trouble) -> str:
        """Its path below the root, and what is known of it."""
        path = trouble.path.removeprefix(f"{self.root}/")
        return f"{path}: {trouble.detail}" if trouble.detail else path


def stores_in(root: Root) -> list[str]:
    """The directories of all stores. Raises StorageUnavailable."""
    with explained(root.path, "read"):
        return root.run(lambda: sorted(path for _, path in store_directories(root.path)))


def check_root(
    root: Root,
    stores: list[str],
    orders: Orders,
    step: Callable[[int], None],
    known: Known = _nobody_knows,
) -> RootCheck:
    """Look through the stores, then through what lies beside them; `step` is told of each store;
    `known` is asked for a namespace whose readable form is lost. Raises StorageUnavailable."""
    check = RootCheck(root.path, root.kind)
    with explained(root.path, "checked"):
        with root.held() as facts:
            problem = facts.problem
        if problem:
            check.found.append(Found(Trouble(MEDIUM, f"{root.path}/.medium", detail=problem)))
            orders = Orders()  # whose the stores are is known when it has been opened again
        for path in stores:
            _check_store(root, path, orders, check)
            step(1)
        with root.held():
            for trouble in root.run(lambda: list(find_in_root(root))):
                mended = orders.repair and _mend_beside(root, trouble, known)
                check.found.append(Found(trouble, mended))
    return check


def _check_store(root: Root, path: str, orders: Orders, check: RootCheck) -> None:
    try:
        with root.held():
            store = read_store(root, path)
            troubles = root.run(lambda: list(find_in_store(root, store)))
    except FileNotFoundError:
        return  # deleted meanwhile
    check.stores += 1
    check.in_use += bool(store.in_use_by) and not store.adopted
    check.pages += store.pages
    check.file_bytes += store.file_bytes
    deleted, why_kept = False, ""
    if orders.delete_left and not store.in_use_by and store.idle_s >= orders.idle_s:
        why_kept = delete_store(root, path)
        deleted = not why_kept
    if deleted:
        check.found += [Found(trouble, mended=True) for trouble in troubles]
    else:
        check.found += _mended(root, store, troubles, orders)
    if store.adopted or not store.in_use_by:
        check.left.append(_left(store, deleted=deleted, why_kept=why_kept))


def _mended(root: Root, store: StoreReport, troubles: list[Trouble], orders: Orders) -> list[Found]:
    """The troubles, those that may be mended."""
    mendable = [trouble for trouble in troubles if trouble.kind in _IN_STORES]
    if not (orders.repair and mendable) or store.in_use_by:
        return [Found(trouble) for trouble in troubles]
    with root.taken(store.path) as why_not:
        if why_not:
            return [Found(trouble) for trouble in troubles]
        for trouble in mendable:
            _mend(root, store.path, trouble)
    return [Found(trouble, mended=trouble in mendable) for trouble in troubles]


def _mend(root: Root, store: str, trouble: Trouble) -> None:
    """One trouble of a store that was taken."""
    if trouble.kind == DAMAGED:
        number = int(Path(trouble.path).stem.removeprefix("seg-"))
        root.void(store, number, root.run(lambda: damaged_records(root, store, number)))
    else:
        root.unlink(trouble.path)


def _mend_beside(root: Root, trouble: Trouble, known: Known) -> bool:
    if trouble.kind == DRAFTS:
        root.unlink(trouble.path)
        return True
    if trouble.kind == NAMESPACES:
        namespace = known(Path(trouble.path).name)
        if namespace is not None:
            root.run(lambda: _write_namespace(Path(trouble.path), namespace))
        return namespace is not None
    return trouble.kind == EMPTY and root.run(lambda: _remove_namespace(Path(trouble.path)))


def _write_namespace(directory: Path, namespace: Namespace) -> None:
    """Its readable form anew, whole at once."""
    draft = directory / f".namespace-{uuid.uuid4().hex}"
    draft.write_bytes(namespace.encode())
    draft.replace(directory / "namespace.msgpack")


def _remove_namespace(directory: Path) -> bool:
    """False where something else is in it."""
    with contextlib.suppress(OSError):
        (directory / "namespace.msgpack").unlink(missing_ok=True)
        directory.rmdir()
        return True
    return False


def _left(store: StoreReport, *, deleted: bool, why_kept: str) -> LeftStore:
    return LeftStore(
        path=store.path,
        pages=store.pages,
        file_bytes=store.file_bytes,
        idle_s=store.idle_s,
        adopted=store.adopted,
        closed_cleanly=store.closed_cleanly,
        deleted=deleted,
        why_kept=why_kept,
    )
