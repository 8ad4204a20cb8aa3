"""What pages as objects need of a store: batches of whole objects by key, moved by address."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.outcomes import Outcome
from hicache_backends.pages import Pages


class ObjectStore(ABC):
    """Objects by key. Keys are relative to the place that the store was opened on.

    A batch returns one answer a key, in order, by its deadline where the store can end a call;
    where it can't, the call stays, and its caller sees to it that nobody waits. An exception
    (`StorageError`) means that the call as a whole was not carried out. Safe to use from several
    threads. Every error of the library beneath is translated here.
    """

    name: str

    @abstractmethod
    def medium(self, deadline: Deadline) -> bytes:
        """The 16-byte uuid of the place: equal for all who reach the same objects."""

    @abstractmethod
    def get_into(self, keys: Sequence[str], objects: Pages, deadline: Deadline) -> list[Outcome]:
        """Read objects into the pieces of `objects`. NEVER_WRITTEN for one that is not there,
        CHECKSUM for one of another length. What is not ok leaves its memory undefined."""

    @abstractmethod
    def put_from(self, keys: Sequence[str], objects: Pages, deadline: Deadline) -> list[Outcome]:
        """Store objects, each visible when it is whole. One that is there may keep its bytes, and
        is `existed` where the store can tell."""

    @abstractmethod
    def exists(self, keys: Sequence[str], deadline: Deadline) -> list[bool]:
        """Whether each object is there. One that can't be asked for is not."""

    @abstractmethod
    def remove(self, keys: Sequence[str], deadline: Deadline) -> list[Outcome]:
        """Remove objects; one that is not there is ok."""

    @abstractmethod
    def read(self, key: str, deadline: Deadline) -> bytes | None:
        """A small object; None if it is not there."""

    @abstractmethod
    def create(self, key: str, data: bytes, deadline: Deadline) -> None:
        """Store a small object unless one of that key is there."""

    @abstractmethod
    def close(self) -> None:
        """Let go of everything. No call is under way, and none follows."""

    def asks_first(self) -> bool:
        """Whether the next put should ask which objects are there; else `put_from` tells."""
        return True

    def register(self, address: int, size: int) -> bool:
        """Make memory known to the transport, for as long as it lives; False: no use."""
        return False

    def unregister(self, address: int) -> None:
        """The registered memory at `address` is about to go."""
        return

    def reaches(self, pages: Pages) -> bool:
        """Whether these pages lie in registered memory, so that no copy is needed."""
        return False

    def stats(self) -> dict[str, int | float | str]:
        """What of the store its users should see, such as the transport in force."""
        return {}
