"""Where the masters are: one server, the one that Sentinels name, or those of a Cluster."""

from __future__ import annotations

import itertools
import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import redis
from redis.crc import key_slot

from hicache_backends.deadline import Deadline
from hicache_backends.errors import (
    ConfigError,
    RegistryError,
    RegistryRefused,
    RegistryUnavailable,
)
from kvmanager.endpoint import Endpoint, redacted

SLOTS: Final = 16_384
MAX_LEARNED: Final = 64
"""Nodes of a Cluster that are asked besides those that the URL names."""
_FORMS = (
    "redis-sentinel://[user:password@]host:port,host:port/service[/db] or "
    "redis-cluster://[user:password@]host:port,host:port"
)
_URL = re.compile(
    r"(?P<scheme>rediss?)-(?P<kind>sentinel|cluster)://(?P<user>[^/?#@]*@)?(?P<hosts>[^/?#@]+)"
    r"(?P<path>/[^?#]*)?(\?(?P<query>[^#]*))?"
)
_PORTS = {"sentinel": 26_379, "cluster": 6379}
_SENTINEL_OPTIONS = ("sentinel_username", "sentinel_password")


@dataclass(frozen=True)
class Shards:
    """The masters, each with the first and the last of its hash slots."""

    ranges: tuple[tuple[int, int, Endpoint], ...]

    @classmethod
    def of_one(cls, endpoint: Endpoint) -> Shards:
        """One server that holds all keys."""
        return cls(((0, SLOTS - 1, endpoint),))

    def holder(self, key: bytes) -> Endpoint:
        """The master of a key, or of all keys with this hash tag (braces included). Raises
        RegistryUnavailable where a Cluster has none."""
        slot = key_slot(key)
        for first, last, endpoint in self.ranges:
            if first <= slot <= last:
                return endpoint
        raise RegistryUnavailable(f"no node of the Cluster serves slot {slot}")

    @property
    def endpoints(self) -> dict[str, Endpoint]:
        """Each master once, by what it is shown as."""
        return {endpoint.shown: endpoint for _, _, endpoint in self.ranges}


class Finder(ABC):
    """Finds the masters anew at each call; who calls decides how often."""

    apart = False
    """Whether keys without a common hash tag may lie on different servers."""
    known: Shards | None = None
    """Where they are without asking."""

    def __init__(self, shown: str) -> None:
        self.shown = shown

    @abstractmethod
    def find(self, deadline: Deadline) -> Shards:
        """Raises RegistryUnavailable, RegistryRefused."""


class OneServer(Finder):
    """A server that is where the URL says."""

    def __init__(self, endpoint: Endpoint) -> None:
        super().__init__(endpoint.shown)
        self.known = self._shards = Shards.of_one(endpoint)

    def find(self, deadline: Deadline) -> Shards:
        return self._shards


class _Asking(Finder):
    """Asks one seed after another, each time beginning with another one: what the first says may
    be out of date."""

    def __init__(self, shown: str, seeds: tuple[Endpoint, ...]) -> None:
        super().__init__(shown)
        self._seeds = seeds
        self._turn = itertools.count()

    def find(self, deadline: Deadline) -> Shards:
        refusal: RegistryError | None = None
        seeds = list(self._from(next(self._turn)))
        for asked, seed in enumerate(seeds):
            # each has its share of the time, and as much is left to connect with what is found
            share_ms = deadline.remaining_ms() / (len(seeds) - asked + 1)
            try:
                return self._told(seed, _ask(seed, max(share_ms, 1) / 1000, *self._question))
            except RegistryError as error:
                if refusal is None or isinstance(error, RegistryRefused):
                    refusal = error
        raise refusal or RegistryUnavailable(f"{self.shown}: no address")

    def _from(self, turn: int) -> Iterator[Endpoint]:
        first = turn % len(self._seeds)
        yield from (*self._seeds[first:], *self._seeds[:first])

    @property
    @abstractmethod
    def _question(self) -> tuple[str, ...]:
        """The command that a seed answers."""

    @abstractmethod
    def _told(self, seed: Endpoint, reply: Any) -> Shards:
        """What the answer says. Raises RegistryError."""


class Sentinels(_Asking):
    """The master of one service, as its Sentinels name it."""

    def __init__(
        self, shown: str, seeds: tuple[Endpoint, ...], service: str, server: Endpoint
    ) -> None:
        """`server`: settings of the masters."""
        super().__init__(shown, seeds)
        self._service = service
        self._server = replace(server, found=True)

    @property
    def _question(self) -> tuple[str, ...]:
        return "SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._service

    def _told(self, seed: Endpoint, reply: Any) -> Shards:
        if reply is None:
            raise RegistryUnavailable(f"{seed.shown} knows no service {self._service!r}")
        try:
            host, port = (part.decode() for part in reply)
            return Shards.of_one(_node(self._server, host, int(port), self.shown))
        except (ValueError, TypeError, AttributeError):
            raise _nonsense(seed, reply) from None


class ClusterNodes(_Asking):
    """The masters of a Cluster, as any of its nodes lists them."""

    apart = True

    def __init__(self, shown: str, seeds: tuple[Endpoint, ...], server: Endpoint) -> None:
        """`server`: settings of every node."""
        super().__init__(shown, seeds)
        self._server = replace(server, found=True)
        self._learned: tuple[Endpoint, ...] = ()  # in case all seeds were replaced

    def _from(self, turn: int) -> Iterator[Endpoint]:
        yield from super()._from(turn)
        yield from self._learned

    @property
    def _question(self) -> tuple[str, ...]:
        return "CLUSTER", "SLOTS"

    def _told(self, seed: Endpoint, reply: Any) -> Shards:
        try:
            ranges = [
                (int(first), int(last), [self._at(seed, node) for node in nodes])
                for first, last, *nodes in reply
            ]
            shards = Shards(tuple((first, last, nodes[0]) for first, last, nodes in ranges))
        except (ValueError, TypeError, AttributeError, IndexError):
            raise _nonsense(seed, reply) from None
        if not ranges:
            raise RegistryUnavailable(f"{seed.shown} knows of no slots: a Cluster of its own?")
        known = {endpoint.shown: endpoint for _, _, nodes in ranges for endpoint in nodes}
        self._learned = tuple(replace(node, found=False) for node in known.values())[:MAX_LEARNED]
        return shards

    def _at(self, seed: Endpoint, node: Any) -> Endpoint:
        """`node`: host, port, and what does not matter; no host means the one that was asked."""
        host = (node[0] or b"").decode()
        host = seed.host if host in ("", "?") else host
        return _node(self._server, host, int(node[1]), self.shown)


def finder(url: str) -> Finder:
    """Raises ConfigError for what names no Redis."""
    if not re.match(r"rediss?-(sentinel|cluster)://", url):
        return OneServer(Endpoint.parse(url))
    shown = redacted(url)
    parts = _URL.fullmatch(url)
    if parts is None:
        raise ConfigError(f"endpoint {shown}: use {_FORMS}")
    kind, path = parts["kind"], (parts["path"] or "").strip("/")
    places = [_place(seed, _PORTS[kind], shown) for seed in parts["hosts"].split(",")]
    options = dict(parse_qsl(parts["query"] or "", keep_blank_values=True))
    own: dict[str, Any] = {"db": 0}
    if kind == "sentinel":
        own |= {name[9:]: options.pop(name, None) for name in _SENTINEL_OPTIONS}
    service, _, database = path.partition("/") if kind == "sentinel" else ("", "", path)
    if not re.fullmatch(r"\d*" if service else "0?", database):
        raise ConfigError(f"endpoint {shown}: not a database that it has; use {_FORMS}")
    server = Endpoint.parse(
        f"{parts['scheme']}://{parts['user'] or ''}{_joined(*places[0])}/{database}"
        f"?{urlencode(options)}"
    )
    if kind == "cluster":
        seeds = tuple(server.at(*place, f"{shown} ({_joined(*place)})") for place in places)
        return ClusterNodes(shown, seeds, server)
    if not service:
        raise ConfigError(f"endpoint {shown}: the service's name is missing; use {_FORMS}")
    seeds = tuple(
        server.at(*place, f"Sentinel {_joined(*place)} of {shown}", **own) for place in places
    )
    return Sentinels(shown, seeds, unquote(service), server)


def _place(seed: str, port: int, shown: str) -> tuple[str, int]:
    try:
        parts = urlsplit(f"//{seed.strip()}")
        if parts.hostname:
            return parts.hostname, parts.port or port
    except ValueError:
        pass
    raise ConfigError(f"endpoint {shown}: {seed!r} is no host:port; use {_FORMS}")


def _joined(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _node(server: Endpoint, host: str, port: int, shown: str) -> Endpoint:
    if not host or not 0 < port < 65_536:
        raise ValueError("no address")
    return server.at(host, port, f"{shown} at {_joined(host, port)}")


def _ask(endpoint: Endpoint, timeout_s: float, *command: str) -> Any:
    """Raises RegistryUnavailable, RegistryRefused."""
    connection = endpoint.connect(timeout_s)
    try:
        connection.send_command(*command)  # type: ignore[no-untyped-call]  # redis-py's
        return connection.read_response()
    except (redis.RedisError, OSError) as error:
        raise endpoint.translated(error) from None
    finally:
        connection.disconnect()  # type: ignore[no-untyped-call]  # redis-py's


def _nonsense(seed: Endpoint, reply: Any) -> RegistryRefused:
    return RegistryRefused(f"{seed.shown}: an answer that makes no sense: {str(reply)[:80]}")
