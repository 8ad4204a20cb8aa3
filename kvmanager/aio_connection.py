"""One request, one reply on asyncio: connections to the server and the few that are kept."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Protocol, cast

import redis
import redis.asyncio.connection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from hicache_backends import native_calls
from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryUnavailable
from kvmanager.connection import Pool, Probed
from kvmanager.endpoint import Endpoint
from kvmanager.probe import Probe
from kvmanager.resp import Replies

_KINDS: dict[type, type[redis.asyncio.connection.AbstractConnection]] = {
    redis.Connection: redis.asyncio.Connection,
    redis.SSLConnection: redis.asyncio.SSLConnection,
    redis.UnixDomainSocketConnection: redis.asyncio.UnixDomainSocketConnection,
}


class _Stream(asyncio.Protocol):
    """Bytes from the server, for the one request that waits for them: asyncio's own streams would
    cost a lookup as much as its reply does."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self.lost: OSError | None = None
        self._transport = transport
        self._received = Replies(0)
        self._whole: asyncio.Future[bytes] | None = None

    def expect(self, replies: int, begun: bytes) -> asyncio.Future[bytes]:
        """So many replies, of which a beginning is there already. Raises ConnectionError."""
        self._received = Replies(replies)
        if begun:
            self._received.take(begun)
        self._whole = asyncio.get_running_loop().create_future()
        return self._whole

    def data_received(self, data: bytes) -> None:
        whole = self._whole
        try:
            if self._received.take(data) and whole is not None and not whole.done():
                whole.set_result(bytes(self._received.raw))
                self._received = Replies(0)
        except ConnectionError as error:
            self.connection_lost(error)
            self._transport.abort()  # whatever else comes

    def connection_lost(self, exc: Exception | None) -> None:
        if not isinstance(exc, OSError):
            exc = ConnectionResetError("the server closed the connection")
        self.lost = self.lost or exc
        if self._whole is not None and not self._whole.done():
            self._whole.set_exception(self.lost)


class AsyncConnection:
    """A connection used by one task at a time.

    redis-py makes it (address, TLS, AUTH, SELECT); requests then go over its transport.
    """

    def __init__(
        self,
        made: redis.asyncio.connection.AbstractConnection,
        generation: int,
        may_wait: Callable[[], bool] = lambda: False,
    ) -> None:
        """`may_wait`: whether the event loop may stand still for what a reply takes at best,
        since nothing else waits for it."""
        self._made = made
        self.generation = generation
        self._between = True  # no request without its reply
        writer = made._writer
        if writer is None or writer.transport.is_closing():
            raise RegistryUnavailable("the connection was closed while it was made")
        self._transport = cast(asyncio.Transport, writer.transport)  # streams read and write
        self._stream = _Stream(self._transport)
        self._transport.set_protocol(self._stream)
        self._loop = asyncio.get_running_loop()
        self._may_wait = may_wait
        plain = self._transport.get_extra_info("ssl_object") is None
        self._socket = self._transport.get_extra_info("socket") if plain else None

    @property
    def clean(self) -> bool:
        """Whether it can carry another request."""
        return self._between and self._stream.lost is None

    async def probe(self, probe: Probe, deadline: Deadline) -> Probed:
        """Raises as `exchange`."""
        raw = await self.exchange(probe.packed(), deadline, probe.replies)
        locations, tail = probe.read(raw)
        if locations is not None:
            return locations, b"", b""
        return None, tail, await self.exchange(probe.script_request(), deadline)

    async def exchange(self, request: bytes, deadline: Deadline, replies: int = 1) -> bytes:
        """The raw replies. Raises TimeoutError, OSError; close the connection after either, and
        after a cancellation."""
        if self._stream.lost is not None:
            raise self._stream.lost
        self._between = False
        sent, raw, all_there = self._try(request, replies)
        if not all_there:
            whole = self._stream.expect(replies, raw)
            if sent < len(request):
                self._transport.write(request[sent:])
            late = self._loop.call_later(deadline.remaining_ms() / 1000, _late, whole)
            try:
                raw = await whole
            finally:
                late.cancel()
        self._between = True
        return raw

    def _try(self, request: bytes, replies: int) -> tuple[int, bytes, bool]:
        """As `native_calls.try_exchange`: past the event loop, whose way to sleep and back takes
        longer than most replies."""
        if self._socket is None or not self._may_wait() or self._transport.is_closing():
            return 0, b"", False
        return native_calls.try_exchange(self._socket.fileno(), request, replies)

    async def close(self) -> None:
        with contextlib.suppress(redis.RedisError, OSError):
            await self._made.disconnect(nowait=True)


def _late(whole: asyncio.Future[bytes]) -> None:
    if not whole.done():
        whole.set_exception(TimeoutError("no reply by the deadline"))


class AsyncChannel(Protocol):
    """As `connection.Channel`; close it after a cancellation, too."""

    generation: int

    @property
    def clean(self) -> bool:
        """Whether it can carry another request."""

    async def exchange(self, request: bytes, deadline: Deadline) -> bytes:
        """The raw reply. Raises TimeoutError, OSError; close the channel after either."""

    async def probe(self, probe: Probe, deadline: Deadline) -> Probed:
        """Raises as `exchange`."""

    async def close(self) -> None:
        """It is of no use afterwards."""


class AsyncChannelPool(ABC):
    """The last connection given back is the first one taken."""

    def __init__(self, connect_timeout_ms: float, keep: int = 8) -> None:
        self._connect_timeout_ms = connect_timeout_ms
        self._keep = keep
        self._idle: list[AsyncChannel] = []
        self._generation = 0
        self._used = 0

    async def take(self, deadline: Deadline) -> AsyncChannel:
        """An idle connection or a new one. Raises RegistryUnavailable, RegistryRefused."""
        while self._idle:
            connection = self._idle.pop()
            if connection.clean:
                self._used += 1
                return connection
            await connection.close()  # the server closed it
        left_ms = min(deadline.remaining_ms(), self._connect_timeout_ms)
        connection = await self._open(max(left_ms, 1) / 1000, self._generation)
        self._used += 1
        return connection

    @abstractmethod
    async def _open(self, timeout_s: float, generation: int) -> AsyncChannel:
        """Raises RegistryUnavailable or RegistryRefused."""

    async def give(self, connection: AsyncChannel) -> None:
        """Back for the next caller, if it can be used again."""
        self._used -= 1
        usable = connection.clean and connection.generation == self._generation
        if usable and len(self._idle) < self._keep:
            self._idle.append(connection)
        else:
            await connection.close()

    async def clear(self) -> None:
        """Close the idle ones, and those in use when they come back."""
        self._generation += 1
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()


class AsyncPool(AsyncChannelPool):
    """Connects to wherever `pool` does."""

    def __init__(
        self, pool: Pool, connect_timeout_ms: float, keep: int = 8, *, stands_still: bool = False
    ) -> None:
        """`stands_still`: the event loop does nothing else while a lone request waits for its
        reply, up to 80 µs."""
        super().__init__(connect_timeout_ms, keep)
        self._stands_still = stands_still
        self._pool = pool
        self._place: Endpoint | None = None

    async def take(self, deadline: Deadline) -> AsyncChannel:
        if self._place is not self._pool.endpoint:  # it was found elsewhere meanwhile
            self._place = self._pool.endpoint
            await self.clear()
        return await super().take(deadline)

    async def _open(self, timeout_s: float, generation: int) -> AsyncConnection:
        return AsyncConnection(await self._connect(timeout_s), generation, self._may_wait)

    def _may_wait(self) -> bool:
        return self._stands_still and self._used == 1

    async def _connect(self, limit_s: float) -> redis.asyncio.connection.AbstractConnection:
        endpoint = self._pool.endpoint
        settings = endpoint.settings(limit_s)
        kind = _KINDS[settings.pop("connection_class", redis.Connection)]
        made = kind(**settings, retry=Retry(NoBackoff(), 0))
        try:
            await asyncio.wait_for(_greet(made, endpoint), limit_s)
        except BaseException as error:
            with contextlib.suppress(Exception):  # a transport that is gone cannot be closed
                await made.disconnect(nowait=True)
            if isinstance(error, asyncio.TimeoutError):
                raise RegistryUnavailable(f"{endpoint.shown}: no connection in time") from None
            if isinstance(error, (redis.RedisError, OSError)):
                raise endpoint.translated(error) from None
            if isinstance(error, Exception):  # redis-py's and uvloop's, of what is no Redis
                raise RegistryUnavailable(f"{endpoint.shown}: no Redis: {error!r:.200}") from error
            raise
        return made


async def _greet(made: redis.asyncio.connection.AbstractConnection, endpoint: Endpoint) -> None:
    await made.connect()  # type: ignore[no-untyped-call]  # redis-py's
    if endpoint.found:
        await made.send_command("ROLE")
        endpoint.check_role(await made.read_response())
