"""Connections to the service, kept alive, on asyncio."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Coroutine
from typing import Any

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from kvmanager.aio_connection import AsyncChannel, AsyncChannelPool
from kvmanager.connection import RECEIVE_BYTES, Probed
from kvmanager.flow import T
from kvmanager.http.endpoint import Address, HttpEndpoint
from kvmanager.http.message import Response, with_headers
from kvmanager.http.tries import Tries
from kvmanager.probe import Probe

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class AsyncHttpConnection:
    """As `HttpConnection`, for one task at a time."""

    def __init__(self, endpoint: HttpEndpoint, timeout_s: float, generation: int) -> None:
        self._endpoint = endpoint
        self._timeout_s = timeout_s
        self.generation = generation
        self.clean = True
        self._streams: Streams | None = None
        self._address = endpoint.first

    async def open(self) -> None:
        """Connect to the first address that answers. Raises RegistryUnavailable,
        RegistryRefused."""
        refusal: Exception | None = None
        deadline = Deadline.after_ms(self._timeout_s * 1000)
        for address in self._endpoint:
            try:
                await self._connect(address, deadline)
            except ssl.SSLCertVerificationError as error:
                refusal = RegistryRefused(f"{address.shown}: {error}")
            except OSError as error:
                refusal = refusal or RegistryUnavailable(f"{address.shown}: {error}")
            else:
                return
            self._endpoint.failed(address)
        raise refusal or RegistryUnavailable(f"{self._endpoint.shown}: no address")

    async def exchange(self, request: bytes, deadline: Deadline) -> bytes:
        """As `HttpConnection.exchange`."""
        self.clean = False
        tries = Tries(self._endpoint, request, deadline)
        while True:
            until = tries.begin()
            rested = self._usable()
            try:
                streams = self._streams or await self._connect(self._endpoint.first, until)
                tries.sent = True
                response = await _in_time(self._once(streams, request, until), until)
            except OSError as error:
                await self.close()
                tries.failed(self._address, error, rested=rested)
                continue
            if tries.enough(self._address, response):
                self.clean = True
                return response
            await self.close()

    async def probe(self, probe: Probe, deadline: Deadline) -> Probed:
        raise NotImplementedError("the service has no probes")  # `HttpWire.direct` says so

    async def close(self) -> None:
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()

    def _usable(self) -> bool:
        """As `HttpConnection._usable`."""
        streams = self._streams
        if streams is None:
            return False
        if self._address is not self._endpoint.first or streams[0].at_eof():
            streams[1].close()
            self._streams = None
        return self._streams is not None

    async def _connect(self, address: Address, deadline: Deadline) -> Streams:
        self._address = address
        left_ms = min(deadline.remaining_ms(), self._timeout_s * 1000)
        opening = asyncio.open_connection(
            address.host, address.port, ssl=self._endpoint.tls if address.tls else None
        )
        self._streams = await _in_time(opening, Deadline.after_ms(max(left_ms, 1)))
        return self._streams

    async def _once(self, streams: Streams, request: bytes, deadline: Deadline) -> bytes:
        reader, writer = streams
        left_ms = max(1, int(deadline.remaining_ms()))
        headers = self._endpoint.headers(self._address)
        writer.write(with_headers(request, b"%bdeadline-ms: %d\r\n" % (headers, left_ms)))
        await writer.drain()
        response = Response()
        while not response.take(await reader.read(RECEIVE_BYTES)):
            pass
        if response.closes:
            await self.close()
        return bytes(response.raw)


class AsyncHttpPool(AsyncChannelPool):
    """Connections to a service."""

    def __init__(self, endpoint: HttpEndpoint, connect_timeout_ms: float, keep: int = 8) -> None:
        super().__init__(connect_timeout_ms, keep)
        self._endpoint = endpoint

    async def _open(self, timeout_s: float, generation: int) -> AsyncChannel:
        connection = AsyncHttpConnection(self._endpoint, timeout_s, generation)
        await connection.open()
        return connection


async def _in_time(call: Coroutine[Any, Any, T], deadline: Deadline) -> T:
    try:
        return await asyncio.wait_for(call, deadline.remaining_ms() / 1000)
    except asyncio.TimeoutError:  # on Python 3.10 another class than TimeoutError
        raise TimeoutError("no answer by the deadline") from None
