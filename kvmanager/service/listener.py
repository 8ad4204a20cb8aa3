"""What one listener is sent: a snapshot or a replay, then what its namespace's feed tells."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial

from hicache_backends.errors import RegistryError
from kvmanager.control.events import listen, order
from kvmanager.service.event_messages import STILL_THERE, message, of_event
from kvmanager.service.feeds import Feed
from kvmanager.service.walks import MAX_PART_BYTES, RETRY_S, Missed, Seat, Slow

HEARTBEAT_S = 15.0
MAX_WAITING_BYTES = 4 << 20
"""Of events that a listener has not taken yet."""


class Listener:
    """Begins anew with a snapshot where something was missed. `after`: the last event that was
    heard; None: a snapshot is wanted."""

    def __init__(self, feed: Feed, after: str | None) -> None:
        self._feed = feed
        self._heard = after or ""
        self._resets = 0
        self._seat: Seat | None = None
        self._stage: Callable[[], Awaitable[bytes]] = self._head if after is None else self._replay
        self._live = False
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._waiting_bytes = 0
        self._stirred = asyncio.Event()

    def offer(self, sequence: str, message: bytes) -> None:
        """Keep it for `next`, up to a limit."""
        if self._live and self._waiting_bytes <= MAX_WAITING_BYTES:
            self._waiting.append((sequence, message))
            self._waiting_bytes += len(message)
            self._stirred.set()

    def stir(self) -> None:
        """Wake `next`."""
        self._stirred.set()

    async def next(self) -> bytes:
        """What is to be sent next, which may be a while in coming; b"" at the end. Raises Slow."""
        while not self._feed.closed:
            try:
                part = await self._stage()
            except Missed:
                self._live = False
                self._stage = self._head
                return message("reset", {"detail": "something may have been missed"})
            except RegistryError:
                await asyncio.sleep(RETRY_S)
                return STILL_THERE
            if part:
                return part
        return b""

    def close(self) -> None:
        """Nobody listens any more."""
        if self._seat is not None:
            self._seat.leave()

    async def _head(self) -> bytes:
        self.close()
        self._seat = seat = self._feed.walks.board(self._stirred)
        self._stage = partial(self._pages, seat)
        return b""

    async def _pages(self, seat: Seat) -> bytes:
        ended = seat.ended
        part = seat.take()
        if not part and ended:
            self._heard = seat.position
            self._stage = self._replay
            return b""
        return part or await self._stir()

    async def _stir(self) -> bytes:
        """Wait for something to happen."""
        self._stirred.clear()
        try:
            await asyncio.wait_for(self._stirred.wait(), HEARTBEAT_S)
        except asyncio.TimeoutError:
            return STILL_THERE
        return b""

    async def _replay(self) -> bytes:
        """From the stream itself until the feed is not ahead."""
        self._resets = self._feed.resets
        heard = await self._feed.run(listen(self._feed.tag, self._heard), self._feed.tag)
        if heard is None or heard.lost:
            raise Missed
        if any(event.kind == "begin" for event in heard.events):
            raise Missed
        told = [of_event(event) for event in heard.events]
        self._heard = heard.events[-1].id if heard.events else self._heard
        if not heard.more and self._resets == self._feed.resets:
            self._feed.position = self._feed.position or self._heard
            if order(self._feed.position) <= order(self._heard):
                self._waiting.clear()
                self._waiting_bytes = 0
                self._live = True
                self._stage = self._follow
                told.append(message("live", {"epoch": heard.epoch}, self._heard))
        return b"".join(told)

    async def _follow(self) -> bytes:
        if self._resets != self._feed.resets:
            raise Missed
        if not self._waiting:
            return await self._stir()
        if self._waiting_bytes > MAX_WAITING_BYTES:
            raise Slow
        told = b""
        while self._waiting and len(told) < MAX_PART_BYTES:
            sequence, event = self._waiting.popleft()
            self._waiting_bytes -= len(event)
            if order(sequence) > order(self._heard):
                self._heard = sequence
                told += event
        return told
