"""Members of a namespace, as the tests use them."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import TracebackType

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.segment.format import Location
from hicache_backends.storage import ROOT, PageEntry
from kvmanager.connect import connect_registry
from kvmanager.model import EntrySource, Lookup, Member, Orders, Published, State
from kvmanager.options import RegistryOptions
from kvmanager.session import RedisRegistry

NAMESPACE = Namespace("model", "revision", "bf16", "page_first", 64, 4096)
FAST = RegistryOptions(timeout_ms=500, connect_timeout_ms=500, heartbeat_ms=100, ttl_ms=10_000)
MORTAL = replace(FAST, ttl_ms=400)
"""Of a process that is to vanish. A busy machine may hold up any process as long as that, and one
that joins anew announces what a test took away."""


def digests(n: int) -> list[bytes]:
    return [os.urandom(16) for _ in range(n)]


def soon(timeout_ms: float = 2000) -> Deadline:
    return Deadline.after_ms(timeout_ms)


def eventually(happened: Callable[[], bool], within_s: float = 5) -> None:
    """Waits for what another thread or process does."""
    give_up = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < give_up, "it did not happen in time"
        time.sleep(0.005)


class Store:
    """One member with its pages, as a page store would hold them, and its session."""

    def __init__(
        self,
        url: str,
        *,
        medium: bytes,
        store: bytes | None = None,
        namespace: Namespace = NAMESPACE,
        options: RegistryOptions = FAST,
        shared: bool = True,
        start: bool = True,
    ) -> None:
        self.member = Member(
            os.urandom(16), "host", "server", store or os.urandom(16), medium, shared
        )
        self.pages: dict[bytes, PageEntry] = {}
        self.orders: list[Orders] = []
        self.source: EntrySource = lambda: iter(list(self.pages.values()))
        self._slots = 0
        self.registry: RedisRegistry = connect_registry(
            url, namespace, self.member, entries=lambda: self.source(), options=options
        )
        if start:
            self.start()

    def start(self) -> None:
        """Begin the heartbeats."""
        self.registry.start(self._obey)

    def entry(self, digest: bytes, parent: bytes = ROOT) -> PageEntry:
        """A page in a fresh slot, not yet held."""
        self._slots += 1
        location = Location(self.member.store, 0, self._slots, 4096, self._slots, 7)
        return PageEntry(digest, parent, location.pack())

    def chain(self, keys: Sequence[bytes], parent: bytes = ROOT) -> list[PageEntry]:
        parents = [parent, *keys[:-1]][: len(keys)]
        return [self.entry(key, above) for key, above in zip(keys, parents, strict=True)]

    def write(self, entries: Sequence[PageEntry], token: bytes = b"") -> list[Published]:
        """Hold pages and publish them."""
        self.pages.update((entry.digest, entry) for entry in entries)
        return self.registry.publish(entries, token, soon())

    def lookup(self, keys: Sequence[bytes], *, prefix: bool = True) -> Lookup:
        return self.registry.lookup(keys, [self.member.medium], soon(), prefix=prefix)

    def lookup_or_none(self, keys: Sequence[bytes]) -> int | None:
        """The prefix found, None without an answer."""
        try:
            return self.lookup(keys).prefix
        except RegistryUnavailable:
            return None

    def settled(self) -> None:
        """Wait until the registry knows every page."""
        eventually(lambda: self.registry.state is State.UP)

    def _obey(self, orders: Orders) -> None:
        self.orders.append(orders)
        if orders.clear:
            self.pages.clear()


class Cluster:
    """Stores on one medium unless told otherwise."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.medium = os.urandom(16)
        self.stores: list[Store] = []

    def store(
        self,
        *,
        medium: bytes | None = None,
        store: bytes | None = None,
        namespace: Namespace = NAMESPACE,
        options: RegistryOptions = FAST,
        shared: bool = True,
        start: bool = True,
        url: str | None = None,
    ) -> Store:
        made = Store(
            url or self.url,
            medium=medium or self.medium,
            store=store,
            namespace=namespace,
            options=options,
            shared=shared,
            start=start,
        )
        self.stores.append(made)
        return made

    def __enter__(self) -> Cluster:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for store in self.stores:
            store.registry.close(500)
