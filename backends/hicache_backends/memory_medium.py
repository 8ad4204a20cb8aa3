"""What outlives a memory store, as a disk would: the pages of each namespace and their order."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from hicache_backends.identity import Namespace
from hicache_backends.segment.lineage import Lineage
from hicache_backends.segment.policy import Ghosts, LeafLru

_GHOSTS = 65536


@dataclass(slots=True)
class StoredPage:
    """A page as it lies in memory: never changed once it is stored, except by tests."""

    data: bytearray
    checksum: int  # of io/engine.py
    parent: bytes


class EvictionOrder:
    """The eviction policy of the segment store, told digests instead of slots."""

    def __init__(self) -> None:
        self._lineage = Lineage()
        self._policy = LeafLru(self._lineage)
        self._slots = self._lineage.slots
        self._free: list[int] = []

    def add(self, digest: bytes, parent: bytes) -> None:
        """A new page, just used."""
        if not self._free:
            self._free.append(len(self._lineage.digests))
            self._lineage.extend(1)
            self._policy.extend(1)
        slot = self._free.pop()
        self._lineage.arrive(slot, digest, parent)
        self._policy.add(slot)

    def learn(self, digest: bytes, parent: bytes) -> None:
        """The parent of a page whose parent was unknown."""
        slot = self._slots[digest]
        if self._policy.settled(slot) and self._lineage.learn(slot, parent):
            self._lineage.join(slot)

    def touch(self, digests: Iterable[bytes]) -> None:
        """Of these pages those that are here were used now, the last one most recently."""
        self._policy.touch(self._slots[digest] for digest in digests if digest in self._slots)

    def idle_ms(self, digest: bytes) -> int:
        """Milliseconds since the page was last used."""
        return self._policy.idle_ms(self._slots[digest])

    def victim(self, pinned: Collection[bytes], idle_ms: int = 0) -> bytes | None:
        """The next page to go, none of the `pinned`, that was not used for `idle_ms`; None if there
        is none. No other call gets it until it is settled by `keep` or `discard`."""
        slots = {self._slots[digest] for digest in pinned if digest in self._slots}
        victims = self._policy.victims(1, slots, idle_ms)
        return self._lineage.digests[victims[0]] if victims else None

    def keep(self, digest: bytes) -> None:
        """A victim stays, as just used."""
        self._policy.keep(self._slots[digest])

    def is_leaf(self, digest: bytes) -> bool:
        """Whether no page that follows this one is here."""
        return not self._lineage.children[self._slots[digest]]

    def discard(self, digest: bytes) -> None:
        """This page, a victim or not, is gone."""
        slot = self._slots[digest]
        self._policy.remove(slot)
        self._lineage.depart(slot)
        self._free.append(slot)


@dataclass(slots=True)
class Shelf:
    """The pages of one namespace, and the lock that guards them."""

    pages: dict[bytes, StoredPage] = field(default_factory=dict)
    order: EvictionOrder = field(default_factory=EvictionOrder)
    ghosts: Ghosts = field(default_factory=lambda: Ghosts(_GHOSTS))
    evicted: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)


class MemoryMedium:
    """What outlives a store: the pages of each namespace."""

    def __init__(self) -> None:
        self._shelves: dict[bytes, Shelf] = {}

    def shelf(self, namespace: Namespace) -> Shelf:
        """Where the pages of this namespace lie."""
        return self._shelves.setdefault(namespace.fingerprint, Shelf())

    def pages(self, namespace: Namespace) -> dict[bytes, StoredPage]:
        """The stored pages by digest, for tests that damage them."""
        return self.shelf(namespace).pages
