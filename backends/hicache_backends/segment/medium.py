"""What a medium is: a root that stores share, whose they are, and how large they may be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_backends.segment.directory import StoreDirectory


@dataclass(frozen=True, slots=True)
class Limits:
    """What a root may hold. None: what the root's `.medium` says, at first 80 % of what the
    file system has to offer, and 5 % of the file system kept free."""

    capacity_bytes: int | None = None
    free_floor_bytes: int | None = None


class Medium(ABC):
    """A root that this process may use. Thread safe. Every method raises OSError, ETIMEDOUT at
    the deadline."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.uuid = b""
        self.reclaimed_segments = 0
        self.on_reclaim: Callable[[str, int], None] = lambda directory, number: None
        """Told of each segment of another's store that was deleted for space."""

    @abstractmethod
    def open_store(self, namespace: Namespace, deadline: Deadline) -> StoreDirectory:
        """A store that this process writes to from now on. Raises IdentityMismatch, too."""

    @abstractmethod
    def open_again(
        self, namespace: Namespace, lost: StoreDirectory, deadline: Deadline
    ) -> StoreDirectory:
        """An empty store for one that was deleted from outside, or all of the root was."""

    def adopt(self, namespace: Namespace, deadline: Deadline) -> list[str]:
        """The directories of stores that this process takes over from others which are gone, to
        read and to delete what is there, but not to write to."""
        return []

    @abstractmethod
    def abandoned(self, namespace: Namespace, deadline: Deadline) -> list[str]:
        """The directory of each store of the namespace that no process has open right now."""

    @abstractmethod
    def reserve(
        self, most: int, unit: int, namespace: str, own: int, deadline: Deadline
    ) -> AbstractContextManager[tuple[int, bool]]:
        """Room for up to `most` bytes, a multiple of `unit`, for a store of `namespace` that has
        `own` bytes; and whether it should rather give a segment up. The caller makes its files
        inside the context.

        Where there is less, segments of stores that no process has open are deleted first. 0
        where nothing can be had.
        """

    @abstractmethod
    def release(self, size: int, deadline: Deadline) -> AbstractContextManager[None]:
        """The caller deletes own files of `size` bytes inside the context."""

    @abstractmethod
    def recount(self, deadline: Deadline) -> None:
        """Some files went, or came back: believe them, and no account."""

    @abstractmethod
    def figures(self) -> tuple[int, int]:
        """Capacity and used bytes of the root as last seen here; no I/O, for a drive may hang."""
