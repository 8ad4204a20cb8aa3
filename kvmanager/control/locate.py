"""Where a prompt's prefix is stored, for routers: how many of its pages each server would find.

A server is the set of processes (ranks) that answer together, and is as good as the worst of them:
a rank finds a page if any medium that it has a store on holds it, and each pool of the model is
needed. Ranks that hold different heads, and pools, are namespaces of their own, so a question names
all namespaces of a model; each is asked by a flow of its own, and `merged` makes one answer of it.

The answer is a hint. Pages come and go, and the registry is not asked about every page: the first
page and the last one of a prefix are there, the one after it is not, and a hole of less than an
eighth of the pages that were asked for may be overlooked.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryRefused
from hicache_backends.native_calls import page_digests
from kvmanager.connection import Pool
from kvmanager.control.namespaces import NamespaceRecord, StoreRecord, describe, members
from kvmanager.driver import Driver
from kvmanager.flow import Flow, T, answer
from kvmanager.model import MAX_PROBES
from kvmanager.options import RegistryOptions
from kvmanager.replies import EpochMoved, Forgotten, read_done
from kvmanager.scripts import Call
from kvmanager.shards import Finder, finder
from kvmanager.wire import joined

MAX_PAGES = 4096
"""Of one question."""
FRESH_S = 1.0
"""So long it is believed which stores there are and which processes are alive."""
RETRY_S = 0.5
MAX_NAMESPACES = 1024
"""So many are remembered."""
_MAX_MEDIA = 255
_TRIES = 3

Group = frozenset[bytes]
"""Media by their 8-letter ids."""


@dataclass(frozen=True, slots=True)
class MediumPrefix:
    """What one medium (its uuid) holds of the prefix by itself."""

    medium: bytes
    shared: bool
    pages: int


@dataclass(frozen=True, slots=True)
class ServerPrefix:
    """What a server would find: `pages` from the start, on `media` taken together. `ranks`: how
    many it has; `namespaces` (ids): those asked about in which it has a living process."""

    server: str
    pages: int
    hosts: tuple[str, ...]
    ranks: int
    media: tuple[MediumPrefix, ...]
    namespaces: tuple[str, ...]


@dataclass(slots=True)
class Server:
    """A server's part in a namespace. `ranks`: the media that each has stores on, of those with a
    living process; `idle`: one of them is ordered to read nothing."""

    hosts: set[str] = field(default_factory=set)
    ranks: dict[int, Group] = field(default_factory=dict)
    idle: bool = False


@dataclass(frozen=True, slots=True)
class Layout:
    """Who can read what in a namespace. `media`: uuid and whether it is shared, by id; `groups`:
    the sets of media whose prefixes matter."""

    record: NamespaceRecord
    fingerprint: bytes
    servers: dict[str, Server]
    media: dict[bytes, tuple[bytes, bool]]
    groups: tuple[Group, ...]

    @classmethod
    def of(cls, record: NamespaceRecord, stores: Iterable[StoreRecord]) -> Layout:
        """From what the registry knows of its stores."""
        servers: dict[str, Server] = {}
        media: dict[bytes, tuple[bytes, bool]] = {}
        for store in stores:
            if not store.alive:
                continue
            server = servers.setdefault(store.server, Server())
            server.hosts.add(store.host)
            group = server.ranks.get(store.rank, frozenset())
            if len(group) < _MAX_MEDIA:
                server.ranks[store.rank] = group | {store.medium_id}
            media[store.medium_id] = (store.medium, store.shared)
            mode = store.mode or record.mode or record.tenant_mode
            server.idle = server.idle or mode == "off"
        groups = {frozenset({medium}) for medium in media}
        for server in servers.values():
            groups.update(server.ranks.values())
        ordered = tuple(sorted(groups, key=sorted))
        return cls(record, record.namespace.fingerprint, servers, media, ordered)


@dataclass(frozen=True, slots=True)
class Found:
    """What was found in one namespace: the prefix of each group of media."""

    layout: Layout
    pages: dict[Group, int]


class Locator:
    """Answers for any namespaces of one registry. Thread safe.

    locator = Locator()
    servers = locator.locate(driver, [keys.tag(namespace.fingerprint)], hashes, deadline)
    """

    @classmethod
    def at(cls, endpoint: str, options: RegistryOptions | None = None) -> ConnectedLocator:
        """One with connections of its own: to a Redis, to the master that Sentinels name, or to a
        Cluster's (`shards.finder`). Connects nowhere yet. Raises ConfigError."""
        return ConnectedLocator(cls(), finder(endpoint), options or RegistryOptions())

    def __init__(self, fresh_s: float = FRESH_S) -> None:
        self._fresh_s = fresh_s
        self._layouts: dict[bytes, tuple[float, Layout]] = {}

    def locate(
        self, driver: Driver, tags: Sequence[bytes], hashes: Sequence[str], deadline: Deadline
    ) -> list[ServerPrefix]:
        """The servers that find the first of these pages, the longest prefix first; a namespace
        that is not there has none. `hashes`: chained page hashes, at most `MAX_PAGES`; `tags`: of
        all namespaces of the model (`keys.tag`). Raises RegistryError, InvalidKey."""
        found = [driver.run(self.prefixes(tag, hashes), deadline) for tag in tags]
        return merged([each for each in found if each is not None])

    def prefixes(self, tag: bytes, pages: Sequence[str] | Sequence[bytes]) -> Flow[Found | None]:
        """What one namespace holds of the pages, named by their hashes or digests; None if there is
        no such namespace."""
        for _ in range(_TRIES):
            layout = yield from self.layout(tag)
            if layout is None:
                return None
            try:
                return Found(layout, (yield from _measured(layout, _digests(layout, pages))))
            except (EpochMoved, Forgotten):
                self._layouts.pop(tag, None)
        raise RegistryRefused("the namespace is cleared again and again")

    def layout(self, tag: bytes) -> Flow[Layout | None]:
        """Who is there, at most as old as the locator takes for fresh."""
        now_s = time.monotonic()
        read_s, layout = self._layouts.get(tag, (0.0, None))
        if layout is not None and now_s - read_s < self._fresh_s:
            return layout
        record = yield from describe(tag)
        if record is None:
            self._layouts.pop(tag, None)
            return None
        layout = Layout.of(record, (yield from members(tag)))
        if len(self._layouts) >= MAX_NAMESPACES:
            self._layouts.clear()
        self._layouts[tag] = (now_s, layout)
        return layout


class ConnectedLocator:
    """A locator of a registry that it finds by itself, anew after each failure. Thread safe.

    with Locator.at("redis-cluster://a:6379,b:6379") as locator:
        servers = locator.locate([keys.tag(namespace.fingerprint)], hashes, deadline)
    """

    def __init__(self, locator: Locator, found_by: Finder, options: RegistryOptions) -> None:
        self._locator = locator
        self._finder = found_by
        self._options = options
        self._drivers: dict[bytes, Driver] = {}
        self._retry_s: dict[bytes, float] = {}
        self._lock = threading.Lock()

    def locate(
        self, tags: Sequence[bytes], hashes: Sequence[str], deadline: Deadline
    ) -> list[ServerPrefix]:
        """As `Locator.locate`. While the registry is down it is tried again twice a second, and
        calls between that fail at once."""
        found = [self._run(tag, self._locator.prefixes(tag, hashes), deadline) for tag in tags]
        return merged([each for each in found if each is not None])

    def close(self) -> None:
        """Close the connections."""
        with self._lock:
            drivers, self._drivers = self._drivers, {}
        for driver in drivers.values():
            driver.pool.clear()

    def __enter__(self) -> ConnectedLocator:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self, tag: bytes, flow: Flow[T], deadline: Deadline) -> T:
        key = tag if self._finder.apart else b""
        driver, lost = self._driver(key)
        if driver.forked:
            driver.check()
        deadline = driver.limit(deadline)
        connection = driver.connect(deadline, fresh=lost)
        try:
            found = driver.run_on(connection, flow, deadline)
        finally:
            driver.pool.give(connection)
        driver.breaker.close()
        return found

    def _driver(self, key: bytes) -> tuple[Driver, bool]:
        """That of the server with this key, and whether to look for the server. Raises
        RegistryUnavailable while it is down and was tried just now."""
        if key not in self._drivers and len(self._drivers) >= MAX_NAMESPACES:
            self.close()
        with self._lock:
            driver, now_s = self._drivers.get(key), time.monotonic()
            if driver is None:
                pool = Pool(self._finder, self._options.connect_timeout_ms, key=key)
                driver = self._drivers[key] = Driver(pool, self._options)
            elif not driver.breaker.is_open:
                return driver, False
            elif now_s < self._retry_s[key]:
                driver.check()
            self._retry_s[key] = now_s + RETRY_S
            return driver, True


def merged(found: Sequence[Found]) -> list[ServerPrefix]:
    """The servers that find at least the first page, in all namespaces that they have a part in;
    the longest prefix first, and those of one length by their names."""
    servers = {server for each in found for server in each.layout.servers}
    prefixes = [_of_server(server, found) for server in servers]
    return sorted((p for p in prefixes if p.pages), key=lambda p: (-p.pages, p.server))


def _of_server(name: str, found: Sequence[Found]) -> ServerPrefix:
    pages: list[int] = []
    hosts: set[str] = set()
    ranks: set[int] = set()
    media: dict[bytes, MediumPrefix] = {}
    parts = [(each, each.layout.servers[name]) for each in found if name in each.layout.servers]
    for each, server in parts:
        hosts |= server.hosts
        ranks |= server.ranks.keys()
        pages += [0 if server.idle else each.pages[group] for group in server.ranks.values()]
        for medium in frozenset().union(*server.ranks.values()):
            uuid, shared = each.layout.media[medium]
            alone = each.pages[frozenset({medium})]
            known = media.get(uuid)
            media[uuid] = MediumPrefix(uuid, shared, min(alone, known.pages) if known else alone)
    return ServerPrefix(
        name,
        min(pages),
        tuple(sorted(hosts)),
        len(ranks),
        tuple(media[uuid] for uuid in sorted(media)),
        tuple(each.layout.record.id for each, _ in parts),
    )


def _digests(layout: Layout, pages: Sequence[str] | Sequence[bytes]) -> bytes:
    """One after another. Raises InvalidKey, ValueError."""
    if len(pages) > MAX_PAGES:
        raise ValueError(f"at most {MAX_PAGES} pages are located at once")
    hashes = [page for page in pages if isinstance(page, str)]
    digests = [page for page in pages if isinstance(page, bytes)]
    return joined(page_digests(layout.fingerprint, hashes) if hashes else digests)


def _measured(layout: Layout, digests: bytes) -> Flow[dict[Group, int]]:
    """The prefix on each group of media, a bounded number of them a call."""
    pages: dict[Group, int] = {}
    tag, epoch = layout.record.tag, b"%d" % layout.record.epoch
    for groups in _chunks(layout.groups, len(digests) // 16):
        media = sorted(frozenset().union(*groups))
        number = {medium: bytes((n,)) for n, medium in enumerate(media)}
        packed = b"".join(
            bytes((len(group),)) + b"".join(map(number.__getitem__, sorted(group)))
            for group in groups
        )
        args = (epoch, tag, digests, b"".join(media), packed)
        said = read_done((yield from answer(Call.of("locate", (b"n" + tag,), args))))
        if len(said) != 2 * len(groups):
            raise RegistryRefused(f"a reply is malformed: {said!r:.60}")
        for n, group in enumerate(groups):
            pages[group] = int.from_bytes(said[2 * n : 2 * n + 2], "big")
    return pages


def _chunks(groups: Sequence[Group], pages: int) -> Iterator[list[Group]]:
    """So many at a time that a call is short: eight probes and a bisection a medium."""
    probes = 9 + max(1, pages // 8).bit_length()
    chunk: list[Group] = []
    media = 0
    for group in groups:
        size = len(group)
        if chunk and (media + size > _MAX_MEDIA or (media + size) * probes > MAX_PROBES):
            yield chunk
            chunk, media = [], 0
        chunk.append(group)
        media += size
    if chunk:
        yield chunk
