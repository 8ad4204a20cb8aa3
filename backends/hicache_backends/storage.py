"""What a backend is: batched put, get, contains and remove of pages, named by digest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from hicache_backends.deadline import Deadline
from hicache_backends.outcomes import HIT, NEVER_WRITTEN, Outcome
from hicache_backends.pages import Pages

ROOT = b"\0" * 15 + b"\1"
"""Parent of a page that begins a chain."""
UNKNOWN = b"\0" * 16
"""Parent of a page whose place in its chain was not told."""


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a backend can do beyond the minimum."""

    zero_copy: bool = False  # reads and writes the caller's pieces without a copy of its own
    locations: bool = False  # pages are read by location; a registry can tell others where
    shared: bool = False  # several processes may reach the medium
    keyed: bool = False  # a page has one place on the medium, whoever wrote it
    alignment: int = 1  # bytes; buffers and sizes that keep it are moved fastest


@dataclass(frozen=True, slots=True)
class PageEntry:
    """A stored page as its owner knows it."""

    digest: bytes
    parent: bytes
    location: bytes


class Keeper(Protocol):
    """Asked before pages are evicted, told when pages are gone; the registry's side of a store.

    Called by the thread that needs the space, with no lock of the store held. It never raises.
    """

    def may_evict(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
    ) -> Sequence[bool]:
        """For each page: may its slot be reused? `touched_ms`: milliseconds since the owner
        last used it. False: another process read it since; the owner keeps it as just used."""
        ...

    def gone(self, entries: Sequence[PageEntry]) -> None:
        """These pages left the store for another reason: bad, removed, their segment given up."""
        ...


class PageStorage(ABC):
    """Pages of one namespace on one medium.

    Thread safe. A batch returns one outcome a key, in order, whatever happens to single pages;
    an exception (`StorageError`) means that the call as a whole was not carried out. After a
    call has returned nothing writes into its buffers any more. A call returns by its deadline,
    or as soon after as the kernel lets go of an I/O into the caller's memory.
    """

    @property
    @abstractmethod
    def capabilities(self) -> Capabilities:
        """What this backend can do."""

    @property
    def media(self) -> tuple[bytes, ...]:
        """Uuids of the media whose pages this process reads by location, nearest first."""
        return ()

    @property
    def stores(self) -> tuple[tuple[bytes, bytes], ...]:
        """The uuids of each store and of the medium it lies on; none where no other process can
        reach the pages."""
        return ()

    def store_of(self, digest: bytes) -> bytes:
        """The uuid of the store that a page of this digest would be put into."""
        raise NotImplementedError(f"{type(self).__name__} has no stores that others reach")

    @abstractmethod
    def put(
        self, digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], deadline: Deadline
    ) -> list[Outcome]:
        """Store pages. A page becomes visible after its data and record are written; one that is
        already there succeeds without writing (`existed`) and counts as used. `parents`: the
        digest before each page in its chain, ROOT or UNKNOWN."""

    @abstractmethod
    def get(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        locations: Sequence[bytes] | None = None,
    ) -> list[Outcome]:
        """Read pages into `pages`, verified by digest, length and checksum. A page that is not
        ok leaves its buffer undefined. `locations`: where another process put each page, b"" to
        look in the own index alone. Pages read count as used, the last of the batch first."""

    @abstractmethod
    def contains(self, digests: Sequence[bytes]) -> list[bool]:
        """Whether each page is in the own index. Reads no medium, promises and touches nothing."""

    @abstractmethod
    def remove(self, digests: Sequence[bytes]) -> list[Outcome]:
        """Forget pages; removing one that is not there is ok."""

    @abstractmethod
    def close(self, timeout_ms: float = 5000) -> bool:
        """Give everything back. False if an I/O is still stuck in the kernel after `timeout_ms`.
        Closing again is fine."""

    def explain(self, digest: bytes) -> Outcome:
        """Why this page would be missed right now; ok if it would be read."""
        return HIT if self.contains([digest])[0] else NEVER_WRITTEN

    def entries(self) -> Iterator[PageEntry]:
        """Every page in the own index, heads of chains before their tails where known."""
        return iter(())

    def forget_others(self) -> None:
        """Look no longer into stores that other processes left behind: their pages were cleared."""
        return

    def recheck(self, digests: Sequence[bytes], deadline: Deadline) -> None:
        """Others found these pages wrong, or not there: forget those whose place is gone, though
        this process could still read them; those not looked at by the deadline stay. What is
        wrong otherwise shows when it is read."""
        return

    def set_keeper(self, keeper: Keeper | None) -> None:
        """Who is asked before eviction. Backends without an own eviction ignore it."""
        return

    def restrict(self, limit_bytes: int | None, ttl_ms: int | None) -> bool:
        """From now on keep pages of at most `limit_bytes`, and none that was not used for `ttl_ms`;
        None: as it was opened. Whether it can. Takes a bounded time, in which not all may go that
        has to: call it again every few seconds. No put exceeds the limit meanwhile."""
        return False

    def pages_by_store(self) -> dict[bytes, int]:
        """How many pages lie in each of `stores`, in their order."""
        pages = int(self.stats().get("pages", 0))
        return {store: pages // len(self.stores) for store, _ in self.stores}

    def counters(self) -> dict[str, int]:
        """What went since the opening: `evicted.<cause>` pages (capacity, quota, ttl, space), and
        of these `age.<n>` that were last used less than 2^n seconds before."""
        return {}

    def stats(self) -> dict[str, int | float | str]:
        """Counters and gauges: pages, bytes, capacity_bytes, evicted, io mode in force, ..."""
        return {}
