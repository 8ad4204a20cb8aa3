"""A root on a local disk: its lock holds it still, and a store's lock says whose it is."""

from __future__ import annotations

import contextlib
import errno
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgpack

from hicache_backends.deadline import Deadline
from hicache_backends.segment.format import ALIGNMENT, RECORD_BYTES
from hicache_backends.segment.local_medium import LocalMedium
from hicache_backends.segment.owner import OWNER_BYTES, Owner, OwnerFile
from hicache_backends.segment.plain import plain_size, read_plain
from hicache_backends.segment.reclaim import segment_file_bytes, store_directories
from hicache_backends.segment.segment import Segment, data_path, index_path, zero_records
from hicache_storage.tools.roots import Holder, Root, RootFacts

_LOCK_MS = 5000.0


class LocalRoot(Root):
    """What the backend nvme keeps its stores in."""

    kind = "local"

    @contextlib.contextmanager
    def held(self) -> Iterator[RootFacts]:
        free_bytes = shutil.disk_usage(self.path).free
        with contextlib.ExitStack() as stack:
            try:
                ledger = stack.enter_context(
                    LocalMedium(self.path).locked(Deadline.after_ms(_LOCK_MS))
                )
            except OSError as error:
                if error.errno != errno.ESTALE:
                    raise
                problem = "a copy of another directory, or damaged: it gets a new uuid when opened"
                facts = RootFacts("", "", 0, 0, free_bytes, problem)
            else:
                name, used = ledger.uuid.hex(), ledger.used_bytes
                facts = RootFacts(name, "", ledger.capacity_bytes, used, free_bytes)
            yield facts

    def holder(self, store: str) -> Holder:
        entries = [Path(store), *Path(store).iterdir()]
        newest_s = max((_changed_s(entry) for entry in entries), default=0.0)
        packed = _owner(store)
        owner = Owner.unpack(packed)
        return Holder(
            in_use_by=_holder(store, packed),
            adopted=False,
            closed_cleanly=bool(owner and owner.clean),
            owner_problem="" if owner else "damaged" if packed else "missing, or cannot be read",
            idle_s=round(max(0.0, time.time() - newest_s), 1),
        )

    def records(self, store: str, number: int) -> bytes:
        slots = plain_size(data_path(store, number)) // ALIGNMENT
        return read_plain(index_path(store, number), slots * RECORD_BYTES)

    @contextlib.contextmanager
    def taken(self, store: str) -> Iterator[str]:
        with LocalMedium(self.path).locked(Deadline.after_ms(_LOCK_MS)) as ledger:
            lock = OwnerFile.take(store)
            if lock is None:
                yield "in use"
                return
            with contextlib.closing(lock):
                yield ""
            ledger.used_bytes = segment_file_bytes(self.path)

    def delete(self, store: str) -> str:
        shutil.rmtree(store)
        namespace = Path(store).parent
        if not any(store_directories(self.path, namespace.name)):
            shutil.rmtree(namespace)
        return ""

    def void(self, store: str, number: int, slots: Sequence[int]) -> None:
        name = bytes.fromhex(Path(store).name)
        zero_records(Segment(0, name, store, number, len(slots)), sorted(slots))

    def unlink(self, path: str) -> None:
        Path(path).unlink(missing_ok=True)


def _changed_s(path: Path) -> float:
    with contextlib.suppress(FileNotFoundError):
        return path.lstat().st_mtime
    return 0.0


def _owner(store: str) -> bytes:
    """What the `owner` file holds, "" where that cannot be read."""
    with contextlib.suppress(OSError):
        return read_plain(f"{store}/owner", OWNER_BYTES)
    return b""


def _holder(store: str, owner: bytes) -> str:
    """Who has the store open: asked by its lock, named by what its owner file says."""
    if Path(store, "owner").is_symlink() or not Path(store, "owner").is_file():
        return ""
    lock = OwnerFile.take(store)
    if lock is None:
        said = _said(owner)
        return f"{said.get('host', 'unknown host')}, process {said.get('pid', 'unknown')}"
    lock.close()
    return ""


def _said(owner: bytes) -> dict[str, Any]:
    with contextlib.suppress(ValueError, msgpack.UnpackException):
        raw = msgpack.unpackb(owner, strict_map_key=False)
        if isinstance(raw, dict):
            return raw
    return {}
