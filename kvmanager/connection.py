"""One request, one reply: connections to the server and the few that are kept."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import redis.connection

from hicache_backends import native_calls
from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryUnavailable
from kvmanager.endpoint import Endpoint

MAX_REPLY_BYTES: Final = 64 << 20
_RECEIVE_BYTES: Final = 65_536


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

    def exchange(self, request: bytes, deadline: Deadline) -> bytes:
        """The raw reply. Raises TimeoutError, OSError; close the connection after either."""
        self.clean = False
        reply = None
        if self._native:
            reply = native_calls.exchange(self._stream.fileno(), request, deadline)
        if reply is None:
            reply = exchange(self._stream, request, deadline)
        self.clean = True
        return reply

    def close(self) -> None:
        self._made.disconnect()  # type: ignore[no-untyped-call]  # redis-py's


class Pool:
    """The last connection given back is the first one taken."""

    def __init__(self, endpoint: Endpoint, connect_timeout_ms: float, keep: int = 16) -> None:
        self.endpoint = endpoint
        self._connect_timeout_ms = connect_timeout_ms
        self._keep = keep
        self._idle: list[Connection] = []
        self._generation = 0

    def take(self, deadline: Deadline) -> Connection:
        """Raises RegistryUnavailable or RegistryRefused if none can be made."""
        try:
            return self._idle.pop()
        except IndexError:
            return self.connect(deadline)

    def connect(self, deadline: Deadline) -> Connection:
        """A new one, whatever is idle."""
        left_ms = min(deadline.remaining_ms(), self._connect_timeout_ms)
        generation = self._generation
        return Connection(self.endpoint.connect(max(left_ms, 1) / 1000), generation)

    def give(self, connection: Connection) -> None:
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
        idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()


def exchange(stream: socket.socket, request: bytes, deadline: Deadline) -> bytes:
    """What `native_calls.exchange` does, by Python's socket; TLS too."""
    _limit(stream, deadline)
    stream.sendall(request)
    reply = bytearray()
    end = -1
    while end < 0 or len(reply) < end:
        _limit(stream, deadline)
        part = stream.recv(_RECEIVE_BYTES)
        if not part:
            raise ConnectionResetError("the server closed the connection")
        reply += part
        if end < 0:
            end = _reply_end(reply)
    if len(reply) != end:
        raise ConnectionResetError("the server sent more than one reply")
    return bytes(reply)


def _limit(stream: socket.socket, deadline: Deadline) -> None:
    left_ms = deadline.remaining_ms()
    if not left_ms:
        raise TimeoutError("no reply by the deadline")
    stream.settimeout(left_ms / 1000)


def _reply_end(reply: bytearray) -> int:
    """Where the reply ends; -1 if that cannot be seen yet."""
    line = reply.find(b"\r\n")
    if line < 0:
        return -1
    if reply[:1] != b"$":
        return line + 2
    digits = reply[1:line]
    if digits == b"-1":
        return line + 2
    if not digits.isdigit() or int(digits) > MAX_REPLY_BYTES:
        raise ConnectionResetError(f"a reply of {bytes(digits[:20])!r} bytes")
    return line + 2 + int(digits) + 2
