"""The pages that lie on a medium against those that the registry knows there, both ways.

The cluster is alive: what `look` finds counts only if `confirm` finds it again, with the same
generation, when whatever was under way must have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from hicache_backends.storage import PageEntry
from hicache_storage.tools.announce import announce
from hicache_storage.tools.lying import Entry, Lying
from hicache_storage.tools.registry_access import RegistryAccess
from kvmanager.control import audit
from kvmanager.control.audit import Place
from kvmanager.control.walk import Batch, Foreign, Walk
from kvmanager.flow import Flow, T
from kvmanager.replies import Forgotten

ROUND_PAGES = 1 << 16
"""Entries that are compared at once: each segment's records are read once for all of them."""
ASKED_PAGES = 512
"""In one call, which takes the server about a millisecond."""
MAX_CANDIDATES = 1 << 16
"""Of one kind; what is beyond is left to the next run."""
_ANNOUNCE_S = 30.0
_POLL_S = 0.1

Say = Callable[[str], None]
_Item = TypeVar("_Item")


@dataclass(frozen=True)
class Owners:
    """Stores of a namespace. `alive`: the registry hears of their processes; `void`: their pages
    are from before a clear that they have not carried out; `held`: how many pages each has, as its
    process last reported."""

    alive: Set[bytes] = frozenset()
    void: Set[bytes] = frozenset()
    held: Mapping[bytes, int] = field(default_factory=dict)

    def of(self, location: bytes) -> bytes:
        """The store of a location, if its process is alive; else b""."""
        store = location[:16]
        return store if store in self.alive else b""


@dataclass
class PageFindings:
    """`entries`: in the registry; `miscounted`: it keeps another number; `stale`: those that do not
    fit the medium, and why; `foreign`: what is no entry, by bucket. `missing`: pages that the
    registry lacks, by store that nobody uses; `unannounced`: by store whose process is alive, which
    may have evicted them since; `short`: how many more such a store has than are known, if that was
    so at each look. `unjoined`: stores in use by processes that this registry does not hear of.
    `full`: there is more."""

    entries: int = 0
    miscounted: bool = False
    stale: dict[Entry, str] = field(default_factory=dict)
    foreign: dict[int, list[Foreign]] = field(default_factory=dict)
    missing: dict[bytes, int] = field(default_factory=dict)
    unannounced: dict[bytes, list[PageEntry]] = field(default_factory=dict)
    short: dict[bytes, int] = field(default_factory=dict)
    unjoined: set[bytes] = field(default_factory=set)
    full: bool = False


class PageCheck:
    """One medium of one namespace. Raises RegistryError, StorageUnavailable."""

    def __init__(
        self, access: RegistryAccess, place: Place, lying: Lying, owners: Owners, say: Say
    ) -> None:
        self.place = place
        self.lying = lying
        self.owners = owners
        self.found = PageFindings()
        self._access = access
        self._say = say
        self._lying_pages: dict[bytes, int] = {}  # of live stores

    def look(self) -> None:
        """Find what does not fit."""
        self._look_at_entries()
        self.found.miscounted = self.kept_count() != self.found.entries
        for store, user in self.lying.stores().items():
            if store in self.owners.void:
                continue
            if store in self.owners.alive:
                self._look_at_live(store)
            elif user:
                self.found.unjoined.add(store)
            else:
                self._say(f"{self.lying.name}: store {store.hex()[:16]}")
                lacking = sum(1 for _ in self._lacking(store))
                if lacking:
                    self.found.missing[store] = lacking

    def confirm(self, owners: Owners) -> None:
        """Keep what is still so. `owners`: as they are by now."""
        found, self.owners = self.found, owners
        found.stale = self._still_stale(found.stale)
        buckets = {n: self._bucket(n) for n in found.foreign}
        found.foreign = {
            n: still
            for n, before in found.foreign.items()
            if (still := [each for each in before if each in buckets[n].foreign])
        }
        users = self.lying.stores()
        found.missing = {s: n for s, n in found.missing.items() if users.get(s) == ""}
        unannounced = {s: self._still_lacking(pages) for s, pages in found.unannounced.items()}
        found.unannounced = {store: pages for store, pages in unannounced.items() if pages}
        found.short = {s: min(n, self._short(s)) for s, n in found.short.items()}

    def kept_count(self) -> int:
        """How many entries there are, as the registry keeps it."""
        field = b"k:" + self.place.family
        kept = self._ask(partial(audit.ask, b"HGET", b"n" + self.place.tag, field))
        return int(kept) if isinstance(kept, bytes) and kept.lstrip(b"-").isdigit() else 0

    def counted(self) -> int | None:
        """How many there are; None where buckets were split meanwhile."""
        walk, entries, buckets = Walk(*self.place), 0, 0
        while not walk.done:
            entries += len(self._access.ask(walk.step, self.place.tag).pages)
            buckets = buckets or walk.buckets
        return entries if buckets == walk.buckets else None

    @property
    def has_mended(self) -> bool:
        """Whether a repair had something to do with entries."""
        found = self.found
        return bool(found.stale or found.foreign or found.missing or found.unannounced)

    def drop_stale(self) -> None:
        """Take the entries that do not fit out of the registry, and tell the owners."""
        nobodys = []
        for digest, location in self.found.stale:
            if self.owners.of(location):
                self._ask(partial(audit.report, self.place, digest, location))
            else:
                nobodys.append((digest, location))
        for chunk in _chunks(nobodys):
            self._ask(partial(audit.discard, self.place, chunk))

    def insisted(self) -> list[Entry]:
        """Entries that do not fit, and are there again since their owners were told."""
        told = [entry for entry in self.found.stale if self.owners.of(entry[1])]
        return list(self._still_stale(told))

    def purge(self) -> None:
        """Take what is no entry out of its buckets."""
        for bucket in self.found.foreign:
            self._ask(partial(audit.purge, self.place, bucket))

    def publish_missing(self) -> int:
        """Make the pages of stores that nobody uses known; how many were sent."""
        sent = 0
        for store in self.found.missing:
            if self.lying.stores().get(store) != "":
                continue  # its new process announces it
            self._say(f"{self.lying.name}: announcing store {store.hex()[:16]}")
            told = announce(
                self._access.endpoint,
                self._access.options,
                self.lying.namespace,
                store,
                self.lying.medium,
                partial(self._lacking, store),
            )
            sent += told.pages
        return sent

    def call_owners(self) -> int:
        """Have live processes announce all pages of the stores that lack some: a registry without
        a store's sequence gets them all at the next heartbeat. How many of those that were lacking
        came."""
        if not self.found.unannounced:
            return 0
        stores = list(self.found.unannounced)
        self._ask(lambda: audit.ask(b"HDEL", b"q" + self.place.tag, *stores))
        lacking = [page for pages in self.found.unannounced.values() for page in pages]
        rate = self._access.options.announce_pages_per_s
        give_up_s = time.monotonic() + _ANNOUNCE_S + len(lacking) / rate
        left, before = len(lacking), -1
        patience_s = 2 * self._access.options.heartbeat_ms / 1000
        since_s = time.monotonic()
        while left and time.monotonic() < give_up_s:
            time.sleep(_POLL_S)
            left = len(self._still_lacking(lacking))
            if left != before:
                before, since_s = left, time.monotonic()
            elif self._in_step(stores) and time.monotonic() - since_s > patience_s:
                break  # the rest was evicted
        return len(lacking) - left

    def _in_step(self, stores: Sequence[bytes]) -> bool:
        """Whether each of these stores has begun to announce."""
        key = b"q" + self.place.tag
        return all(self._ask(partial(audit.ask, b"HEXISTS", key, store)) for store in stores)

    def _look_at_entries(self) -> None:
        walk = Walk(*self.place)
        gathered: list[Entry] = []
        while not walk.done:
            try:
                batch = self._access.ask(walk.step, self.place.tag)
            except Forgotten:
                return  # it knows nothing here
            gathered += batch.pages
            for each in batch.foreign:
                number = int.from_bytes(each.key[-3:], "little")
                self.found.foreign.setdefault(number, []).append(each)
            if len(gathered) >= ROUND_PAGES or walk.done:
                self._judge(gathered)
                gathered = []
                self._say(f"{self.lying.name}: entries of bucket {walk.next} of {walk.buckets}")

    def _judge(self, entries: list[Entry]) -> None:
        self.found.entries += len(entries)
        for entry, why in zip(entries, self.lying.misfits(entries), strict=True):
            if why and len(self.found.stale) < MAX_CANDIDATES:
                self.found.stale[entry] = why
            elif why:
                self.found.full = True

    def _look_at_live(self, store: bytes) -> None:
        lacking: list[PageEntry] = []
        self._lying_pages[store] = 0
        for pages in self.lying.pages(store):
            self._lying_pages[store] += len(pages)
            for chunk in _chunks(pages):
                lacking += self._unknown(chunk)
            if len(lacking) >= MAX_CANDIDATES:
                break
        if lacking:
            self.found.unannounced[store] = lacking
            self.found.short[store] = self._short(store)

    def _short(self, store: bytes) -> int:
        """How many pages a live store has that the registry does not know, as its process reports:
        records that its index has left are overwritten only when their slots are used again."""
        lacking = len(self.found.unannounced.get(store, ()))
        known = self._lying_pages[store] - lacking
        return min(lacking, max(0, self.owners.held.get(store, 0) - known))

    def _lacking(self, store: bytes) -> Iterator[PageEntry]:
        """The pages of a store that the registry knows nowhere on the medium, or only where they
        are not."""
        for pages in self.lying.pages(store):
            for chunk in _chunks(pages):
                yield from self._unknown(chunk)

    def _unknown(self, pages: Sequence[PageEntry]) -> list[PageEntry]:
        """Those of a few pages."""
        known = self._seen([page.digest for page in pages])
        pairs = list(zip(pages, known, strict=True))
        others = [(page.digest, at) for page, at in pairs if at and at != page.location]
        reasons = self.lying.misfits(others)
        lacking = {page.digest for page, at in pairs if not at}
        lacking |= {digest for (digest, _), why in zip(others, reasons, strict=True) if why}
        return [page for page in pages if page.digest in lacking]

    def _still_stale(self, entries: Iterable[Entry]) -> dict[Entry, str]:
        still: dict[Entry, str] = {}
        for chunk in _chunks(list(entries)):
            known = self._seen([digest for digest, _ in chunk])
            there = [entry for entry, at in zip(chunk, known, strict=True) if at == entry[1]]
            reasons = self.lying.misfits(there)
            still.update((e, why) for e, why in zip(there, reasons, strict=True) if why)
        return still

    def _still_lacking(self, pages: Sequence[PageEntry]) -> list[PageEntry]:
        """Those that lie where they lay, and are still nowhere in the registry."""
        still = []
        for chunk in _chunks(pages):
            unknown = self._unknown(chunk)
            reasons = self.lying.misfits([(page.digest, page.location) for page in unknown])
            still += [page for page, why in zip(unknown, reasons, strict=True) if not why]
        return still

    def _bucket(self, number: int) -> Batch:
        walk = Walk(*self.place, step_buckets=1)
        walk.next = number
        whole = Batch()
        while walk.next == number and not walk.done:
            part = self._access.ask(walk.step, self.place.tag)
            whole.foreign += part.foreign
        return whole

    def _seen(self, digests: Sequence[bytes]) -> list[bytes]:
        try:
            return self._ask(partial(audit.seen, self.place, digests))
        except Forgotten:
            return [b""] * len(digests)

    def _ask(self, call: Callable[[], Flow[T]]) -> T:
        return self._access.ask(call, self.place.tag)


def _chunks(items: Sequence[_Item], size: int = ASKED_PAGES) -> Iterator[Sequence[_Item]]:
    return (items[start : start + size] for start in range(0, len(items), size))
