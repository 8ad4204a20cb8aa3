"""`PageStorage` over objects: a page is found by its digest, whoever wrote it."""

from __future__ import annotations

import dataclasses
import threading
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from hicache_backends.arguments import check_get, check_put
from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError
from hicache_backends.identity import Namespace
from hicache_backends.io.select import open_engine
from hicache_backends.objects.index import Index
from hicache_backends.objects.lanes import Area, Call, Lanes
from hicache_backends.objects.opening import check_namespace
from hicache_backends.objects.room import Room, remove_pages
from hicache_backends.objects.store import ObjectStore
from hicache_backends.objects.transfer import Get, Place, Put
from hicache_backends.outcomes import HIT, STALE, TIMED_OUT, Outcome, Reason, miss
from hicache_backends.pages import Pages
from hicache_backends.segment.calls import Calls
from hicache_backends.storage import (
    Capabilities,
    Keeper,
    PageEntry,
    PageStorage,
)

_LANES = 4
_OPEN_MS = 10_000.0
_LOOKUP_MS = 2_000.0
_REMOVE_MS = 10_000.0
_BEING_WRITTEN = miss(Reason.BEING_WRITTEN, "by another call of this process")


@dataclass(frozen=True, slots=True)
class ObjectOptions:
    """`capacity_bytes`: pages that this process keeps of those it wrote; None: what the store
    takes. `zero_copy`: "auto" moves registered memory as it is, "never" copies always.
    `batch_bytes`: moved at once, and held in memory by each call."""

    capacity_bytes: int | None = None
    zero_copy: str = "auto"
    batch_bytes: int = 16 << 20


class ObjectStorage(PageStorage):
    """Pages of one namespace in an object store.

    `shared`: a registry tells which pages there are. Without one the store is asked. The own index
    only remembers; a page in it that is gone from the store is forgotten when it is missed.
    """

    def __init__(
        self,
        namespace: Namespace,
        store: ObjectStore,
        options: ObjectOptions,
        *,
        shared: bool = False,
    ) -> None:
        """The store is closed with this one, also where this raises. Raises ConfigError,
        StorageUnavailable, IdentityMismatch."""
        try:
            limit = _limit(options, namespace.page_bytes)
            self._medium = store.medium(Deadline.after_ms(_OPEN_MS))
            check_namespace(store, namespace, Deadline.after_ms(_OPEN_MS))
        except BaseException:
            store.close()
            raise
        self._uuid = uuid.uuid4().bytes
        self._place = Place(
            store,
            open_engine(),
            namespace.fingerprint.hex(),
            namespace.page_bytes,
            options.batch_bytes,
            options.zero_copy != "never",
        )
        self._index = Index(self._uuid, namespace.page_bytes, limit)
        self._shared = shared
        self._calls = Calls()
        self._lanes = Lanes(store, _LANES)
        self._questions = Lanes(store, _LANES)
        self._room = Room(self._place, self._index, self._questions)
        self._closing = threading.Lock()
        self._released = False

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(
            zero_copy=self._place.zero_copy, locations=True, shared=True, keyed=True
        )

    @property
    def media(self) -> tuple[bytes, ...]:
        return (self._medium,)

    @property
    def stores(self) -> tuple[tuple[bytes, bytes], ...]:
        return ((self._uuid, self._medium),)

    def store_of(self, digest: bytes) -> bytes:
        return self._uuid

    def register(self, address: int, size: int) -> bool:
        """Make memory known to the store's transport: pages in it are then moved in place where
        that is faster, by calls that stay for as long as the transport does. False: no use."""
        return self._place.zero_copy and self._place.store.register(address, size)

    def unregister(self, address: int) -> None:
        """The memory registered at `address` is about to go; no call uses it any more."""
        self._place.store.unregister(address)

    def put(
        self, digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], deadline: Deadline
    ) -> list[Outcome]:
        check_put(digests, pages, parents, self._place.page_bytes)
        with self._flight(deadline):
            if not digests or deadline.passed:
                return [TIMED_OUT] * len(digests)
            put = Put(self._place, self._index, digests, pages, parents, deadline)
            first = self._begin(put)
            if put.rows:
                self._lanes.run(put.run, deadline, stay=put.in_place, give_up=put.give_up)
            outcomes = [
                put.outcomes[n] if n == i else _again(put.outcomes[n]) for i, n in enumerate(first)
            ]
            stored = [i for i, outcome in enumerate(outcomes) if outcome.ok]
            self._index.touch([digests[i] for i in stored], [parents[i] for i in stored])
            return outcomes

    def get(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        locations: Sequence[bytes] | None = None,
    ) -> list[Outcome]:
        check_get(digests, pages, locations, self._place.page_bytes)
        with self._flight(deadline):
            if not digests or deadline.passed:
                return [TIMED_OUT] * len(digests)
            known = self._index.pages
            places = [
                b"" if digest in known else location
                for digest, location in zip(digests, locations or [b""] * len(digests), strict=True)
            ]
            get = Get(self._place, digests, pages, places, deadline)
            for i, digest in enumerate(digests):
                if not self._shared or digest in known or places[i]:
                    get.rows.append(i)
                else:
                    get.outcomes[i] = self._index.absent(digest)
            if get.rows:
                self._lanes.run(get.run, deadline, stay=get.in_place)
            return self._learn(digests, places, get.outcomes)

    def contains(self, digests: Sequence[bytes]) -> list[bool]:
        self._calls.check()
        if self._shared or not digests:
            known = self._index.pages
            return [digest in known for digest in digests]
        deadline = Deadline.after_ms(_LOOKUP_MS)
        distinct = list(dict.fromkeys(digests))
        found: dict[bytes, bool] = {}

        def ask(area: Area, call: Call) -> None:
            there = self._place.store.exists(self._place.keys(distinct), deadline)
            found.update(zip(distinct, there, strict=True))

        with self._flight(deadline):
            self._questions.run(ask, deadline)
        return [found.get(digest, False) for digest in digests]

    def remove(self, digests: Sequence[bytes]) -> list[Outcome]:
        deadline = Deadline.after_ms(_REMOVE_MS)
        with self._flight(deadline):
            distinct = list(dict.fromkeys(digests))
            gone = self._index.drop(distinct)
            removed = remove_pages(self._place, self._questions, distinct, deadline)
        self._room.tell_gone(gone)
        return [removed.get(digest, TIMED_OUT) for digest in digests]

    def close(self, timeout_ms: float = 5000) -> bool:
        deadline = Deadline.after_ms(max(timeout_ms, 1))
        if not self._calls.close(timeout_ms):
            return False
        if self._calls.forked:
            return True
        with self._closing:
            if not self._released:
                for lanes in (self._lanes, self._questions):
                    if not lanes.drain(deadline.remaining_ms()):
                        return False
                self._released = True
                self._place.store.close()
        return True

    def explain(self, digest: bytes) -> Outcome:
        return HIT if self.contains([digest])[0] else self._index.absent(digest)

    def entries(self) -> Iterator[PageEntry]:
        self._calls.check()
        return self._index.entries()

    def set_keeper(self, keeper: Keeper | None) -> None:
        self._room.keeper = keeper

    def restrict(self, limit_bytes: int | None, ttl_ms: int | None) -> bool:
        """Of the pages that this process knows; what others wrote is theirs to keep to."""
        with self._flight(Deadline.after_ms(_REMOVE_MS)):
            page_bytes = self._place.page_bytes
            limit = None if limit_bytes is None else max(0, limit_bytes) // page_bytes
            self._room.restrict(limit, ttl_ms)
        return True

    def pages_by_store(self) -> dict[bytes, int]:
        return {self._uuid: len(self._index)}

    def counters(self) -> dict[str, int]:
        return self._index.tolls.counters()

    def stats(self) -> dict[str, int | float | str]:
        """See `PageStorage.stats`. Pages are those that this process knows; only where it keeps
        to a capacity of its own are they all it put there."""
        pages, limit = len(self._index), self._index.capacity
        known = {"pages": pages, "bytes": pages * self._place.page_bytes}
        if limit is None:
            known = {f"known_{name}": value for name, value in known.items()}
        else:
            known["capacity_bytes"] = limit * self._place.page_bytes
        return {
            **known,
            "evicted": self._index.evicted,
            "in_flight": self._calls.in_flight,
            "late": self._lanes.late + self._questions.late,
            **self._place.store.stats(),
        }

    def _begin(self, put: Put) -> list[int]:
        """Decide which rows are written. For each row the first one of the same page."""
        rows: dict[bytes, int] = {}
        first = [rows.setdefault(digest, i) for i, digest in enumerate(put.digests)]
        mine = self._index.begin_writing([*rows])
        for (digest, i), free in zip(rows.items(), mine, strict=True):
            if not free:
                put.outcomes[i] = _BEING_WRITTEN
            elif self._shared and digest in self._index.pages:
                location = self._index.location(digest)
                put.outcomes[i] = Outcome(True, existed=True, location=location)
                self._index.end_writing([digest])
            else:
                put.rows.append(i)
        try:
            self._room.make(put)
        except BaseException:
            put.give_up()
            raise
        return first

    def _learn(
        self, digests: Sequence[bytes], places: Sequence[bytes], outcomes: list[Outcome]
    ) -> list[Outcome]:
        """Touch what was read, forget what is gone or bad, and say why it was missed."""
        self._index.touch([d for d, outcome in zip(digests, outcomes, strict=True) if outcome.ok])
        away = [i for i, o in enumerate(outcomes) if o.reason is Reason.NEVER_WRITTEN]
        bad = [d for d, o in zip(digests, outcomes, strict=True) if o.reason is Reason.CHECKSUM]
        gone = self._index.drop({digests[i] for i in away}, evicted=True)
        gone += self._index.drop({*bad})
        for i in away:
            outcomes[i] = STALE if places[i] else self._index.absent(digests[i])
        self._room.tell_gone(gone)
        return outcomes

    @contextmanager
    def _flight(self, deadline: Deadline) -> Iterator[None]:
        flight = self._calls.begin(deadline)
        try:
            yield
        finally:
            flight.end()


def _again(outcome: Outcome) -> Outcome:
    """What a page that is in a batch twice is told the second time."""
    return dataclasses.replace(outcome, existed=True) if outcome.ok else outcome


def _limit(options: ObjectOptions, page_bytes: int) -> int | None:
    """Pages that fit into the capacity."""
    if options.zero_copy not in ("auto", "never"):
        raise ConfigError(f"zero_copy is auto or never, not {options.zero_copy!r}")
    if options.capacity_bytes is None:
        return None
    if options.capacity_bytes < page_bytes:
        raise ConfigError(
            f"capacity_bytes is {options.capacity_bytes}; a page alone has {page_bytes} bytes"
        )
    return options.capacity_bytes // page_bytes
