"""The pages that this process knows to be in the store, and what its calls are doing to them."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from hicache_backends.memory_medium import EvictionOrder
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.segment.format import Location
from hicache_backends.segment.policy import Ghosts
from hicache_backends.segment.tolls import Tolls
from hicache_backends.storage import UNKNOWN, PageEntry

MAX_PAGES = 1 << 22
"""Pages known at once where nothing bounds them: the oldest are forgotten, not removed."""
_GHOSTS = 65536


@dataclass(slots=True)
class KnownPage:
    """`checksum` 0: written by another process, and not read here."""

    parent: bytes
    checksum: int
    generation: int


class Index:
    """Pages by digest in the order of their use. `capacity`: pages that may be stored; None: any.
    `limit`: the same, or fewer by order."""

    def __init__(self, store: bytes, page_bytes: int, capacity: int | None) -> None:
        self.lock = threading.Lock()
        self.pages: dict[bytes, KnownPage] = {}
        self.capacity = self.limit = capacity
        self.evicted = 0
        self.tolls = Tolls()
        self._store = store
        self._page_bytes = page_bytes
        self._order = EvictionOrder()
        self._ghosts = Ghosts(_GHOSTS)
        self._generations = itertools.count(1)
        self._writing: set[bytes] = set()
        self._leaving: set[bytes] = set()

    def __len__(self) -> int:
        return len(self.pages)

    def location(self, digest: bytes) -> bytes:
        """Where others find this page, b"" if it is not known."""
        page = self.pages.get(digest)
        if page is None:
            return b""
        return Location(self._store, 0, 0, self._page_bytes, page.generation, page.checksum).pack()

    def entry(self, digest: bytes) -> PageEntry:
        """A known page as its owner knows it."""
        return PageEntry(digest, self.pages[digest].parent, self.location(digest))

    def absent(self, digest: bytes) -> Outcome:
        """Why a page is missed that is not there."""
        return self._ghosts.miss(digest)

    def begin_writing(self, digests: Sequence[bytes]) -> list[bool]:
        """For each distinct page: may it be written now? Not while another call is at it."""
        with self.lock:
            mine = [d not in self._writing and d not in self._leaving for d in digests]
            self._writing.update(d for d, free in zip(digests, mine, strict=True) if free)
        return mine

    def end_writing(self, digests: Iterable[bytes]) -> None:
        """These pages are written, or will not be."""
        with self.lock:
            self._writing.difference_update(digests)

    def add(self, digest: bytes, parent: bytes, checksum: int) -> bytes:
        """A page is in the store from now on; its location."""
        with self.lock:
            if digest not in self.pages:
                self.pages[digest] = KnownPage(parent, checksum, next(self._generations))
                self._order.add(digest, parent)
                if len(self.pages) > MAX_PAGES and (oldest := self._order.victim(())):
                    self._discard(oldest)
            return self.location(digest)

    def touch(self, digests: Sequence[bytes], parents: Sequence[bytes] = ()) -> None:
        """These pages were used now, the first one most recently; those that had no parent take
        theirs."""
        with self.lock:
            for digest, parent in zip(digests, parents, strict=False):
                page = self.pages.get(digest)
                if page and page.parent == UNKNOWN != parent:
                    page.parent = parent
                    self._order.learn(digest, parent)
            self._order.touch(reversed(digests))

    def drop(self, digests: Iterable[bytes], *, evicted: bool = False) -> list[PageEntry]:
        """Forget pages. `evicted`: the store let go of them. Those that were known."""
        with self.lock:
            gone = [self.entry(d) for d in digests if d in self.pages and d not in self._leaving]
            for entry in gone:
                self._discard(entry.digest)
                if evicted:
                    self._ghosts.add(entry.digest)
        return gone

    def victims(
        self, keep: Collection[bytes], count: int, idle_ms: int = 0
    ) -> tuple[list[PageEntry], list[int]]:
        """The next pages to go, of those that were not used for `idle_ms`, and for how many
        milliseconds each was not used; none is written again before `settle`."""
        with self.lock:
            chosen: list[bytes] = []
            while len(chosen) < count:
                digest = self._order.victim(keep, idle_ms)
                if digest is None:
                    break
                chosen.append(digest)
            self._leaving.update(chosen)
            return [*map(self.entry, chosen)], [*map(self._order.idle_ms, chosen)]

    def settle(self, chosen: Sequence[PageEntry], gone: Sequence[bool], cause: str) -> None:
        """What became of the victims; those that are still there stay, as just used."""
        why = Reason.EXPIRED if cause == "ttl" else Reason.EVICTED
        with self.lock:
            for entry, away in zip(chosen, gone, strict=True):
                if away:
                    self.tolls.count(cause, self._order.idle_ms(entry.digest))
                    self._discard(entry.digest)
                    self._ghosts.add(entry.digest, why)
                    self.evicted += 1
                else:
                    self._order.keep(entry.digest)
            self._leaving.difference_update(entry.digest for entry in chosen)

    def is_leaf(self, entry: PageEntry) -> bool:
        """Whether a victim has got no follower since it was chosen."""
        return self._order.is_leaf(entry.digest)

    def excess(self) -> int:
        """Pages too many, those being written counted."""
        if self.limit is None:
            return 0
        with self.lock:
            return len(self.pages) + len(self._writing - self.pages.keys()) - self.limit

    def entries(self) -> Iterator[PageEntry]:
        """Every page, heads of chains before their tails."""
        with self.lock:
            entries = {digest: self.entry(digest) for digest in self.pages}
        done: set[bytes] = set()
        for digest in entries:
            chain = []
            while digest in entries and digest not in done:
                done.add(digest)
                chain.append(entries[digest])
                digest = entries[digest].parent
            yield from reversed(chain)

    def _discard(self, digest: bytes) -> None:
        del self.pages[digest]
        self._order.discard(digest)
