"""The reference backend: pages in this process's memory.

It keeps every promise of `PageStorage` in the plainest way, which makes it the yardstick of the
conformance suite and the double that other tests use. As everywhere, a batch is copied and
checksummed in one call each.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, InvalidBuffer, StorageClosed
from hicache_backends.identity import Namespace
from hicache_backends.io.select import open_engine
from hicache_backends.memory_medium import MemoryMedium, StoredPage
from hicache_backends.outcomes import (
    BAD_CHECKSUM,
    HIT,
    REMOVED,
    TIMED_OUT,
    Outcome,
    Reason,
    miss,
)
from hicache_backends.pages import Pages
from hicache_backends.segment.tolls import Tolls
from hicache_backends.storage import UNKNOWN, Capabilities, Keeper, PageEntry, PageStorage

_EXISTED = Outcome(True, existed=True)
_RESTRICT_MS = 500.0
_STEP = 128
_ROUNDS = 4
"""Of a put, for what was there beyond a limit before it came."""
_NO_SPACE = miss(Reason.NO_SPACE, "every page is in use by this call or kept for others")
_OVER_QUOTA = miss(Reason.QUOTA, "at the ordered limit, with pages in use or kept for others")


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """`capacity_bytes` None: a quarter of the memory that this process may use."""

    capacity_bytes: int | None = None


def open_memory(
    namespace: Namespace, options: MemoryOptions, *, shared: bool = False
) -> MemoryStorage:
    """A store on a medium of its own. No other process can reach it, `shared` or not."""
    capacity = options.capacity_bytes
    if capacity is not None and capacity < namespace.page_bytes:
        raise ConfigError(
            f"memory.capacity_bytes is {capacity}; a page alone has {namespace.page_bytes} bytes"
        )
    return MemoryStorage(namespace, capacity and capacity // namespace.page_bytes)


class MemoryStorage(PageStorage):
    """Pages in memory, at most `capacity_pages` of them."""

    def __init__(
        self,
        namespace: Namespace,
        capacity_pages: int | None = None,
        *,
        medium: MemoryMedium | None = None,
    ) -> None:
        self._page_bytes = namespace.page_bytes
        self._capacity = capacity_pages or max(1, _usable_memory() // 4 // namespace.page_bytes)
        self._limit = self._capacity
        self._tolls = Tolls()
        self._shelf = (medium or MemoryMedium()).shelf(namespace)
        self._engine = open_engine()
        self._keeper: Keeper | None = None
        self._closed = False
        self._process = os.getpid()

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities()

    def put(
        self, digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], deadline: Deadline
    ) -> list[Outcome]:
        self._check(digests, pages)
        if len(parents) != len(digests):
            raise InvalidBuffer(f"{len(digests)} pages, {len(parents)} parents")
        if deadline.passed:
            return [TIMED_OUT] * len(digests)
        copies = [bytearray(self._page_bytes) for _ in digests]
        target = Pages.from_buffers(copies, writable=True)
        self._engine.copy(pages, target)
        sums = self._engine.checksum(target, b"".join(digests)).tolist()
        keep = {*digests, *parents}
        self._approach_limit(keep, 2 * len(digests) + _STEP, deadline)
        outcomes = [
            self._put(digest, StoredPage(data, checksum, parent), keep, deadline)
            for digest, data, checksum, parent in zip(digests, copies, sums, parents, strict=True)
        ]
        self._touch([d for d, outcome in zip(digests, outcomes, strict=True) if outcome.ok])
        return outcomes

    def get(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        locations: Sequence[bytes] | None = None,
    ) -> list[Outcome]:
        self._check(digests, pages)
        if not pages.writable:
            raise InvalidBuffer("the buffers of a get must be writable")
        if deadline.passed:
            return [TIMED_OUT] * len(digests)
        stored = [self._shelf.pages.get(digest) for digest in digests]
        good = self._read(digests, stored, pages)
        found = [*zip(digests, stored, good, strict=True)]
        self._forget([(digest, page) for digest, page, fine in found if page and not fine])
        self._touch([digest for digest, _, fine in found if fine])
        return [
            HIT if fine else BAD_CHECKSUM if page else self._absent(digest)
            for digest, page, fine in found
        ]

    def contains(self, digests: Sequence[bytes]) -> list[bool]:
        self._check_open()
        stored = self._shelf.pages
        return [digest in stored for digest in digests]

    def remove(self, digests: Sequence[bytes]) -> list[Outcome]:
        self._check_open()
        self._forget([(digest, self._shelf.pages.get(digest)) for digest in digests])
        return [REMOVED] * len(digests)

    def close(self, timeout_ms: float = 5000) -> bool:
        self._closed = True
        return True

    def explain(self, digest: bytes) -> Outcome:
        if self.contains([digest])[0]:
            return HIT
        return self._absent(digest)

    def entries(self) -> Iterator[PageEntry]:
        self._check_open()
        with self._shelf.lock:
            parents = {digest: page.parent for digest, page in self._shelf.pages.items()}
        done: set[bytes] = set()
        for digest in parents:
            chain = []
            while digest in parents and digest not in done:
                done.add(digest)
                chain.append(PageEntry(digest, parents[digest], b""))
                digest = parents[digest]
            yield from reversed(chain)

    def restrict(self, limit_bytes: int | None, ttl_ms: int | None) -> bool:
        self._check_open()
        limit = self._capacity if limit_bytes is None else max(0, limit_bytes) // self._page_bytes
        self._limit = min(self._capacity, limit)
        deadline, keep = Deadline.after_ms(_RESTRICT_MS), set[bytes]()
        while not deadline.passed:
            excess = len(self._shelf.pages) - self._limit
            if excess > 0:
                went_on = self._make_room(keep, min(excess, _STEP), deadline, "quota")
            else:
                went_on = bool(ttl_ms) and self._make_room(
                    keep, _STEP, deadline, "ttl", ttl_ms or 0
                )
            if not went_on:
                break
        return True

    def counters(self) -> dict[str, int]:
        return self._tolls.counters()

    def set_keeper(self, keeper: Keeper | None) -> None:
        self._keeper = keeper

    def stats(self) -> dict[str, int | float | str]:
        pages = len(self._shelf.pages)
        return {
            "pages": pages,
            "bytes": pages * self._page_bytes,
            "capacity_bytes": self._capacity * self._page_bytes,
            "evicted": self._shelf.evicted,
        }

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosed("the store is closed")
        if os.getpid() != self._process:
            raise StorageClosed("the store belongs to the process that this one was forked from")

    def _check(self, digests: Sequence[bytes], pages: Pages) -> None:
        self._check_open()
        if len(pages) != len(digests):
            raise InvalidBuffer(f"{len(digests)} pages, buffers for {len(pages)}")
        if len(pages) and pages.page_bytes != self._page_bytes:
            raise InvalidBuffer(
                f"a page of this namespace has {self._page_bytes} bytes, not {pages.page_bytes}"
            )

    def _put(
        self, digest: bytes, page: StoredPage, keep: set[bytes], deadline: Deadline
    ) -> Outcome:
        shelf = self._shelf
        refused = _NO_SPACE if self._cause == "capacity" else _OVER_QUOTA
        while not deadline.passed:
            with shelf.lock:
                if digest in shelf.pages:
                    self._learn_parent(digest, page.parent)
                    return _EXISTED
                if len(shelf.pages) < self._limit:
                    shelf.pages[digest] = page
                    shelf.order.add(digest, page.parent)
                    return HIT
                if len(shelf.pages) > self._limit:
                    return refused
            if not self._make_room(keep, 1, deadline, self._cause):
                return refused
        return TIMED_OUT

    def _approach_limit(self, keep: set[bytes], most: int, deadline: Deadline) -> None:
        """Evict some of what is beyond a limit that fell."""
        for _ in range(_ROUNDS):
            excess = len(self._shelf.pages) - self._limit
            if excess <= 0 or deadline.passed:
                return
            if not self._make_room(keep, min(excess, most), deadline, self._cause):
                return

    @property
    def _cause(self) -> str:
        return "capacity" if self._limit == self._capacity else "quota"

    def _read(
        self, digests: Sequence[bytes], stored: Sequence[StoredPage | None], pages: Pages
    ) -> list[bool]:
        """Copy out what is stored; which pages are there and right."""
        whole = {
            i: page
            for i, page in enumerate(stored)
            if page is not None and len(page.data) == self._page_bytes
        }
        source = Pages.from_buffers([page.data for page in whole.values()], writable=False)
        target = pages[[*whole]]
        self._engine.copy(source, target)
        sums = self._engine.checksum(target, b"".join(digests[i] for i in whole)).tolist()
        good = [False] * len(digests)
        for (i, page), checksum in zip(whole.items(), sums, strict=True):
            good[i] = checksum == page.checksum
        return good

    def _absent(self, digest: bytes) -> Outcome:
        return self._shelf.ghosts.miss(digest)

    def _learn_parent(self, digest: bytes, parent: bytes) -> None:
        page = self._shelf.pages[digest]
        if page.parent == UNKNOWN != parent:
            page.parent = parent
            self._shelf.order.learn(digest, parent)

    def _touch(self, digests: Sequence[bytes]) -> None:
        with self._shelf.lock:
            self._shelf.order.touch(reversed(digests))

    def _forget(self, doomed: Sequence[tuple[bytes, StoredPage | None]]) -> None:
        """Drop these pages, unless others have taken their place."""
        shelf, gone = self._shelf, []
        with shelf.lock:
            for digest, page in doomed:
                if page and shelf.pages.get(digest) is page:
                    gone.append(self._drop(digest))
        if gone and self._keeper:
            self._keeper.gone(gone)

    def _make_room(
        self, keep: set[bytes], count: int, deadline: Deadline, cause: str, idle_ms: int = 0
    ) -> bool:
        """Evict so many pages that were not used for `idle_ms`, or learn that they may not be and
        `keep` them; False if there is none."""
        shelf = self._shelf
        with shelf.lock:
            found = (shelf.order.victim(keep, idle_ms) for _ in range(count))
            chosen = [*itertools.takewhile(bool, found)]
            victims = [(digest, shelf.pages[digest]) for digest in chosen if digest]
            idle = [shelf.order.idle_ms(digest) for digest, _ in victims]
        entries = [PageEntry(digest, page.parent, b"") for digest, page in victims]
        allowed: Sequence[bool] = [True] * len(entries)
        if self._keeper and entries:
            allowed = self._keeper.may_evict(entries, idle, deadline)
        verdicts = [*zip(victims, idle, allowed, strict=True)]
        with shelf.lock:
            # those that stay first: a page that another one follows stays, too
            for (digest, page), idle_for_ms, may_go in sorted(verdicts, key=lambda v: bool(v[2])):
                if shelf.pages.get(digest) is page:
                    self._settle(digest, may_go and shelf.order.is_leaf(digest), cause, idle_for_ms)
            keep.update(digest for digest, page in victims if shelf.pages.get(digest) is page)
        return bool(victims)

    def _settle(self, digest: bytes, goes: bool, cause: str, idle_ms: int) -> None:
        shelf = self._shelf
        if not goes:
            shelf.order.keep(digest)
            return
        self._drop(digest)
        shelf.ghosts.add(digest, Reason.EXPIRED if cause == "ttl" else Reason.EVICTED)
        shelf.evicted += 1
        self._tolls.count(cause, idle_ms)

    def _drop(self, digest: bytes) -> PageEntry:
        page = self._shelf.pages.pop(digest)
        self._shelf.order.discard(digest)
        return PageEntry(digest, page.parent, b"")


def _usable_memory() -> int:
    """Bytes that this process may use: the machine's, or its container's if that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text()
    except OSError:
        return total
    return min(total, int(limit)) if limit.strip().isdigit() else total
