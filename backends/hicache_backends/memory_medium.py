"""What outlives a memory store, as a disk would: the pages of each namespace and their order."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass, field

from hicache_backends.identity import Namespace
from hicache_backends.storage import UNKNOWN


@dataclass(slots=True)
class StoredPage:
    """A page as it lies in memory: never changed once it is stored, except by tests."""

    data: bytearray
    checksum: int  # of io/engine.py
    parent: bytes


class LeafLru:
    """Which page goes next: the least recently used among those without resident children.

    An evicted page hands its recency to its parent. A use is a moment of the monotonic clock in
    nanoseconds, made unique.
    """

    def __init__(self) -> None:
        self._parents: dict[bytes, bytes] = {}
        self._children: dict[bytes, int] = {}
        self._used: dict[bytes, int] = {}
        self._leaves: list[tuple[int, bytes]] = []  # a heap; stale entries are skipped
        self._clock = 0

    def add(self, digest: bytes, parent: bytes) -> None:
        """A new page, just used."""
        self._parents[digest] = UNKNOWN
        self.learn(digest, parent)
        self.touch(digest)

    def learn(self, digest: bytes, parent: bytes) -> None:
        """The parent of a page whose parent was unknown; a parent that would close a circle
        is not believed, so that there is always a leaf."""
        if self._parents[digest] != UNKNOWN or self._descends(parent, digest):
            return
        self._parents[digest] = parent
        self._children[parent] = self._children.get(parent, 0) + 1

    def touch(self, digest: bytes) -> None:
        """This page was just used."""
        self._clock = max(self._clock + 1, time.monotonic_ns())
        self._use(digest, self._clock)

    def idle_ms(self, digest: bytes) -> int:
        """Milliseconds since the page, or one that followed it, was last used."""
        return max(0, time.monotonic_ns() - self._used[digest]) // 1_000_000

    def victim(self, keep: Collection[bytes]) -> bytes | None:
        """The next page to go, none of `keep`; None if there is none."""
        kept, found = [], None
        while self._leaves and found is None:
            used, digest = self._leaves[0]
            if self._used.get(digest) != used or digest in self._children:
                heapq.heappop(self._leaves)
            elif digest in keep:
                kept.append(heapq.heappop(self._leaves))
            else:
                found = digest
        for leaf in kept:
            heapq.heappush(self._leaves, leaf)
        return found

    def is_leaf(self, digest: bytes) -> bool:
        """Whether no page that follows this one is here."""
        return digest not in self._children

    def discard(self, digest: bytes) -> None:
        """This page is gone."""
        used, parent = self._used.pop(digest), self._parents.pop(digest)
        if parent not in self._children:
            return
        self._children[parent] -= 1
        if not self._children[parent]:
            del self._children[parent]
        if parent in self._used:
            self._use(parent, max(used, self._used[parent]))

    def _use(self, digest: bytes, moment: int) -> None:
        self._used[digest] = moment
        heapq.heappush(self._leaves, (moment, digest))
        if len(self._leaves) > 64 + 4 * len(self._used):
            self._leaves = sorted((used, page) for page, used in self._used.items())

    def _descends(self, digest: bytes, ancestor: bytes) -> bool:
        while digest != ancestor and digest in self._parents and ancestor in self._children:
            digest = self._parents[digest]
        return digest == ancestor


@dataclass(slots=True)
class Shelf:
    """The pages of one namespace, and the lock that guards them."""

    pages: dict[bytes, StoredPage] = field(default_factory=dict)
    order: LeafLru = field(default_factory=LeafLru)
    ghosts: dict[bytes, None] = field(default_factory=dict)
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
