"""One connection on asyncio: whole replies however they come, by the event loop or past it."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvmanager.aio_connection import AsyncConnection
from tests.kvmanager.members import soon

REPLY = b"$5\r\nhello\r\n"


@pytest.fixture(params=[False, True], ids=["by the loop", "past it"])
def stands_still(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@asynccontextmanager
async def connected(
    stands_still: bool, serve: Callable[[socket.socket], None]
) -> AsyncIterator[AsyncConnection]:
    ours, theirs = socket.socketpair()
    server = threading.Thread(target=serve, args=(theirs,))
    reader, writer = await asyncio.open_connection(sock=ours)
    made = cast("Any", SimpleNamespace(_reader=reader, _writer=writer))
    server.start()
    try:
        yield AsyncConnection(made, 0, lambda: stands_still)
    finally:
        writer.close()
        await asyncio.to_thread(server.join)
        theirs.close()


async def test_a_reply_that_comes_in_parts_is_put_together(stands_still: bool) -> None:
    def serve(theirs: socket.socket) -> None:
        for pause_s in (0, 0.00003, 0.002):
            assert theirs.recv(100) == b"PING\r\n"
            for at in range(len(REPLY)):
                theirs.sendall(REPLY[at : at + 1])
                time.sleep(pause_s)

    async with connected(stands_still, serve) as connection:
        for _ in range(3):
            assert await connection.exchange(b"PING\r\n", soon()) == REPLY
            assert connection.clean


async def test_a_request_that_the_socket_does_not_take_at_once_is_sent_whole(
    stands_still: bool,
) -> None:
    request, received = b"x" * (8 << 20), bytearray()

    def serve(theirs: socket.socket) -> None:
        while len(received) < len(request):
            received.extend(theirs.recv(65_536))
        theirs.sendall(REPLY * 2)

    async with connected(stands_still, serve) as connection:
        assert await connection.exchange(request, soon(20_000), 2) == REPLY * 2
    assert bytes(received) == request


async def test_a_reply_that_does_not_come_is_waited_for_until_the_deadline(
    stands_still: bool,
) -> None:
    over = threading.Event()

    def serve(theirs: socket.socket) -> None:
        theirs.recv(100)
        theirs.sendall(REPLY[:4])
        over.wait(10)

    async with connected(stands_still, serve) as connection:
        with pytest.raises(TimeoutError):
            await connection.exchange(b"PING\r\n", soon(50))
        assert not connection.clean
        over.set()


async def test_a_call_that_is_cancelled_leaves_a_connection_of_no_use(stands_still: bool) -> None:
    over = threading.Event()

    def serve(theirs: socket.socket) -> None:
        theirs.recv(100)
        over.wait(10)

    async with connected(stands_still, serve) as connection:
        call = asyncio.create_task(connection.exchange(b"PING\r\n", soon(5000)))
        await asyncio.sleep(0.05)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert not connection.clean
        over.set()


@pytest.mark.parametrize("unasked", [b"", REPLY], ids=["the end", "bytes that nobody asked for"])
async def test_what_comes_between_two_calls_is_noticed(stands_still: bool, unasked: bytes) -> None:
    def serve(theirs: socket.socket) -> None:
        theirs.recv(100)
        theirs.sendall(REPLY)
        time.sleep(0.05)
        theirs.sendall(unasked)
        theirs.shutdown(socket.SHUT_WR)

    async with connected(stands_still, serve) as connection:
        assert await connection.exchange(b"PING\r\n", soon()) == REPLY
        usable, give_up = True, time.monotonic() + 5
        while usable:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.01)
            usable = connection.clean
        with pytest.raises(ConnectionError):
            await connection.exchange(b"PING\r\n", soon())


async def test_a_flood_that_nobody_asked_for_is_not_kept() -> None:
    flood = bytes(1 << 20)

    def serve(theirs: socket.socket) -> None:
        with suppress(OSError):
            for _ in range(64):
                theirs.sendall(flood)

    async with connected(False, serve) as connection:
        usable, give_up = True, time.monotonic() + 5
        while usable:
            assert time.monotonic() < give_up
            await asyncio.sleep(0.01)
            usable = connection.clean
        await asyncio.sleep(0.05)
        assert connection._transport.is_closing()
        assert len(connection._stream._received.raw) < 2 * len(flood)
