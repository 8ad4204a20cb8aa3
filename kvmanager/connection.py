"""One request, one reply: connections to the server and the few that are kept."""

from __future__ import annotations

import contextlib
import socket
import ssl
from abc import ABC, abstractmethod
from typing import Any, Final, Protocol

import redis.connection

from hicache_backends import native_calls
from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryUnavailable
from kvmanager import resp
from kvmanager.endpoint import Endpoint
from kvmanager.probe import Probe
from kvmanager.resp import Replies
from kvmanager.shards import Finder, OneServer

RECEIVE_BYTES: Final = 65_536

Probed = tuple[list[bytes] | None, bytes, bytes]
"""Locations, if the probe sufficed; else None, the replies behind its HGETs and the script's."""


class Channel(Protocol):
    """A connection as a pool keeps it. `clean`: no request is without its reply."""

    clean: bool
    generation: int

    def exchange(self, request: bytes, deadline: Deadline) -> bytes:
        """The raw reply. Raises TimeoutError, OSError; close the channel after either."""

    def probe(self, probe: Probe, deadline: Deadline) -> Probed:
        """Raises as `exchange`."""

    def close(self) -> None:
        """It is of no use afterwards."""


class Connection:
    """A connection used by one thread at a time.

    redis-py makes it (address, TLS, AUTH, SELECT); requests then go by one native call, which
    gives up the GIL once, or over TLS and without the extension by Python's socket.
    """

    def __init__(self, made: redis.connection.AbstractConnection, generation: int = 0) -> None:
        self._made = made
        self.generation = generation
        self.clean = True  # no request without its reply
        stream: socket.socket | None = made._sock
        if stream is None:
            raise RegistryUnavailable("the connection was closed while it was made")
        self._stream = stream
        self._native = native_calls.HAVE_NATIVE and not isinstance(stream, ssl.SSLSocket)

    def exchange(self, request: bytes, deadline: Deadline, replies: int = 1) -> bytes:
        """The raw replies. Raises TimeoutError, OSError; close the connection after either."""
        self.clean = False
        reply = None
        if self._native:
            reply = native_calls.exchange(self._stream.fileno(), request, deadline, replies)
        if reply is None:
            reply = exchange(self._stream, request, deadline, replies)
        self.clean = True
        return reply

    def probe(self, probe: Probe, deadline: Deadline) -> Probed:
        """Raises as `exchange`."""
        if self._native:
            self.clean = False
            answer = native_calls.lookup(
                self._stream.fileno(),
                probe.route.parts,
                probe.digests,
                deadline,
                why=probe.why,
                now=probe.now,
                interval=probe.routes.patience,
            )
            if answer is not None:
                self.clean = True
                return answer
        locations, tail = probe.read(self.exchange(probe.packed(), deadline, probe.replies))
        if locations is not None:
            return locations, b"", b""
        return None, tail, self.exchange(probe.script_request(), deadline)

    def close(self) -> None:
        self._made.disconnect()  # type: ignore[no-untyped-call]  # redis-py's


class ChannelPool(ABC):
    """The last connection given back is the first one taken."""

    def __init__(self, connect_timeout_ms: float, keep: int = 16) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._keep = keep
        self._idle: list[Channel] = []
        self._generation = 0

    @property
    @abstractmethod
    def shown(self) -> str:
        """Where the connections go, without secrets."""

    @abstractmethod
    def parse(self, raw: bytes) -> Any:
        """What a raw reply says. Raises RegistryError, NoScript."""

    @abstractmethod
    def _open(self, timeout_s: float, generation: int) -> Channel:
        """Raises RegistryUnavailable or RegistryRefused."""

    def take(self, deadline: Deadline) -> Channel:
        """Raises RegistryUnavailable or RegistryRefused if none can be made."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._open(self._patience_s(deadline), self._generation)

    def connect(self, deadline: Deadline) -> Channel:
        """A new one, whatever is idle. It is for the background, which may look for the server
        first."""
        return self._open(self._patience_s(deadline), self._generation)

    def ask_elsewhere(self, key: bytes, command: bytes, deadline: Deadline) -> bool:
        """Carry a command out on the server that holds another key; False, and nothing done, if
        that is the same server. For the background. Raises RegistryError."""
        return False

    def give(self, connection: Channel) -> None:
        """Back for the next caller, if it can be used again."""
        if (
            connection.clean
            and connection.generation == self._generation
            and len(self._idle) < self._keep
        ):
            self._idle.append(connection)
        else:
            connection.close()

    def clear(self) -> None:
        """Close the idle ones, and those in use when they come back."""
        self._generation += 1
        with contextlib.suppress(IndexError):
            while True:  # one by one, so that none is closed that another thread takes meanwhile
                self._idle.pop().close()

    def _patience_s(self, deadline: Deadline) -> float:
        return max(min(deadline.remaining_ms(), self._connect_timeout_ms), 1) / 1000


class Pool(ChannelPool):
    """Connections to the Redis server that holds a session's keys.

    Data calls connect to where it was found last. It is looked for again whenever the background
    connects, as it does after each failure.
    """

    def __init__(
        self,
        server: Endpoint | Finder,
        connect_timeout_ms: float,
        keep: int = 16,
        *,
        key: bytes = b"",
    ) -> None:
        """`server`, or what finds it. `key`: any of the session's, or their hash tag."""
        super().__init__(connect_timeout_ms, keep)
        finder = OneServer(server) if isinstance(server, Endpoint) else server
        self.finder = finder
        self._key = key
        self._found = finder.known.holder(key) if finder.known else None

    @property
    def shown(self) -> str:
        return self._found.shown if self._found else self.finder.shown

    @property
    def endpoint(self) -> Endpoint:
        """Where the keys are. Raises RegistryUnavailable while that was not found."""
        if self._found is None:
            raise RegistryUnavailable(f"{self.finder.shown}: no master found yet")
        return self._found

    def parse(self, raw: bytes) -> resp.Reply:
        try:
            return resp.parse(raw)
        except resp.Moved:
            if not self.endpoint.found:
                raise
            raise RegistryUnavailable(f"{self.shown}: the slot is on another node now") from None

    def connect(self, deadline: Deadline) -> Channel:
        found = self._find(self._key, deadline)
        if found != self._found:
            self._found = found
            self.clear()
        return super().connect(deadline)

    def ask_elsewhere(self, key: bytes, command: bytes, deadline: Deadline) -> bool:
        if not self.finder.apart:
            return False
        endpoint = self._find(key, deadline)
        connection = Connection(endpoint.connect(self._patience_s(deadline)))
        try:
            self.parse(connection.exchange(command, deadline))
        except OSError as error:
            raise RegistryUnavailable(f"{endpoint.shown}: {error}") from error
        finally:
            connection.close()
        return True

    def _find(self, key: bytes, deadline: Deadline) -> Endpoint:
        return self.finder.find(Deadline.after_ms(self._patience_s(deadline) * 1000)).holder(key)

    def _open(self, timeout_s: float, generation: int) -> Channel:
        return Connection(self.endpoint.connect(timeout_s), generation)


def exchange(stream: socket.socket, request: bytes, deadline: Deadline, replies: int = 1) -> bytes:
    """What `native_calls.exchange` does, by Python's socket; TLS too."""
    _limit(stream, deadline)
    stream.sendall(request)
    received = Replies(replies)
    _limit(stream, deadline)
    while not received.take(stream.recv(RECEIVE_BYTES)):
        _limit(stream, deadline)
    return bytes(received.raw)


def _limit(stream: socket.socket, deadline: Deadline) -> None:
    left_ms = deadline.remaining_ms()
    if not left_ms:
        raise TimeoutError("no reply by the deadline")
    stream.settimeout(left_ms / 1000)
