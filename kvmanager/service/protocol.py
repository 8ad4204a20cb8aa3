"""uvicorn's protocol, with answers in one piece and little patience for slow requests."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

ARRIVAL_S = 5.0
"""So long may a request take to arrive; then its connection is closed."""
ABORT = "kvmanager.abort"
"""In a request's scope: closes its connection at once, whatever is not sent yet."""


class OnePiece:
    """A transport that sends what is written in one step of the event loop at its end.

    Head and body of an answer are written apart; in two segments they would cost another system
    call here, and there a thread that waits a second time.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Send this soon."""
        if not self._parts:
            self._loop.call_soon(self._flush)
        self._parts.append(data)

    def close(self) -> None:
        """Send what was written, and close."""
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        parts, self._parts = self._parts, []
        if parts and not self._transport.is_closing():
            self._transport.write(b"".join(parts))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class Protocol(HttpToolsProtocol):
    """One connection of a client."""

    _slow: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(cast(asyncio.Transport, OnePiece(transport, self.loop)))
        self._await_request()

    def connection_lost(self, exc: Exception | None) -> None:
        self._request_is_there()
        super().connection_lost(exc)

    def on_message_begin(self) -> None:
        self._await_request()
        super().on_message_begin()
        cast(dict[str, Any], self.scope)[ABORT] = self._abort

    def on_message_complete(self) -> None:
        self._request_is_there()
        super().on_message_complete()

    def _abort(self) -> None:
        connection = self.transport.get_extra_info("socket")
        if connection is not None:  # nor is the kernel to keep what the other side does not take
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def _await_request(self) -> None:
        if self._slow is None:
            self._slow = self.loop.call_later(ARRIVAL_S, self.transport.close)

    def _request_is_there(self) -> None:
        slow, self._slow = self._slow, None
        if slow is not None:
            slow.cancel()
