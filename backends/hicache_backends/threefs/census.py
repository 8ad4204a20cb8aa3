"""What lies on a root, as each store's own process says, or its files."""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.segment.reclaim import store_directories
from hicache_backends.segment.segment import segment_files
from hicache_backends.threefs import adoption
from hicache_backends.threefs.directory import SignedDirectory
from hicache_backends.threefs.reclaim import Left
from hicache_backends.threefs.tenure import LEASE_S, Tenure


@dataclass(frozen=True, slots=True)
class Census:
    """The stores at one moment: directory, and what the `owner` file says; None: it is unreadable,
    or not there yet."""

    stores: list[tuple[str, Tenure | None]]

    @classmethod
    def take(cls, root: str, namespace: str | None = None) -> Census:
        """Of all stores on a root, or those of a namespace; one small read each."""
        return cls([(path, _tenure(path)) for _, path in store_directories(root, namespace)])

    def used_bytes(self, own: SignedDirectory | None) -> int:
        """Bytes of all segments: of a store in use as its process says, of the others as their
        files say."""
        total = own.file_bytes if own else 0
        for directory, tenure in self.stores:
            if own and directory == own.path:
                continue
            if tenure and not tenure.is_over:
                total += tenure.file_bytes
            elif not adoption.is_adopted(directory):  # else its adopter's own bytes tell
                total += segment_bytes(directory)
        return total

    def left(self) -> list[Left]:
        """The stores that no process writes to, or deletes from, any more."""
        left = []
        for directory, tenure in self.stores:
            if tenure and not tenure.is_over:
                continue
            used_s = max(_touched_s(directory), tenure.signed_s if tenure else 0)
            if tenure is None and time.time() - used_s < LEASE_S:
                continue  # about to be signed for the first time
            if not adoption.is_adopted(directory):
                namespace = Path(directory).parent.name
                left.append(Left(namespace, directory, used_s, segment_bytes(directory)))
        return left

    def writers(self, own: SignedDirectory) -> list[Tenure]:
        """The other stores that are in use."""
        tenures = (tenure for _, tenure in self.stores if tenure and not tenure.is_over)
        return [tenure for tenure in tenures if tenure.store != own.uuid]


def segment_bytes(directory: str) -> int:
    """The sum of a store's segment files."""
    total = 0
    for _, entry in segment_files(directory):
        with contextlib.suppress(OSError):
            total += entry.stat(follow_symlinks=False).st_size
    return total


def _tenure(directory: str) -> Tenure | None:
    try:
        return Tenure.read(directory)
    except OSError:
        return None


def _touched_s(directory: str) -> float:
    """When the store was signed, or read by another process, last."""
    for path in (f"{directory}/owner", directory):
        with contextlib.suppress(OSError):
            return Path(path).stat().st_mtime
    return time.time()
