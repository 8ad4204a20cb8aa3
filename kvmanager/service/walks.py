"""Snapshots for the listeners of a namespace: one walk for all who wait when it begins.

A million pages take the server a second, and what was missed was missed by all listeners at once.
So whoever comes while a walk is under way waits for the next one. The walks of a service go one
step at a time, all together, and between two steps as much time passes as they took. A walk is as
fast as the slowest of its listeners, within reason.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Coroutine
from typing import Any, Protocol

from hicache_backends.errors import RegistryError
from kvmanager.control.snapshot import Snapshot
from kvmanager.flow import Flow, T
from kvmanager.replies import Forgotten
from kvmanager.service.event_messages import of_heading, of_pages

RETRY_S = 1.0
"""While Redis does not answer, or does not know the namespace."""
FAULT_S = 10.0
"""After what nobody thought of."""
MAX_AHEAD_BYTES = 2 << 20
"""That wait for a listener; then the walk waits."""
PATIENCE_S = 10.0
"""Who has not taken half of that by then is left behind."""
MAX_PART_BYTES = 64 << 10
"""Sent at once; one step's pages more at most."""

_log = logging.getLogger(__name__)


class Run(Protocol):
    """Carries a flow out on the shard of a tag. Raises RegistryError."""

    def __call__(self, flow: Flow[T], tag: bytes) -> Coroutine[Any, Any, T]: ...


class Slow(Exception):
    """The listener does not take what it is sent."""


class Missed(Exception):
    """Something happened that the listener was not told."""


class Seat:
    """One listener's place in a walk. `position`: the event to go on after; `ended`: everything is
    in `take`; `left`: nobody takes it any more. `stirred` is set when there is something new."""

    def __init__(self, stirred: asyncio.Event) -> None:
        self.position = ""
        self.ended = self.left = False
        self.room = asyncio.Event()
        self._stirred = stirred
        self._parts: deque[bytes] = deque()
        self._bytes = 0
        self._failure: Exception | None = None

    def take(self) -> bytes:
        """What has come, some of it; b"" for nothing yet, or nothing more. Raises Missed, Slow."""
        if self._failure is not None:
            raise self._failure
        taken = b""
        while self._parts and len(taken) < MAX_PART_BYTES:
            taken += self._parts.popleft()
        self._bytes -= len(taken)
        if self._bytes <= MAX_AHEAD_BYTES // 2:
            self.room.set()
        return taken

    def leave(self) -> None:
        """It is of no use any more."""
        self.left = True
        self._parts.clear()
        self.room.set()

    def give(self, part: bytes) -> None:
        """Something more."""
        self._parts.append(part)
        self._bytes += len(part)
        if self._bytes > MAX_AHEAD_BYTES:
            self.room.clear()
        else:
            self.room.set()
        self._stirred.set()

    def end(self, failure: Exception | None = None) -> None:
        """There is nothing more."""
        self.ended, self._failure = True, failure
        self._stirred.set()


class Walks:
    """The walks of one namespace, one after another while somebody waits. `gate`: of all walks of
    the service."""

    def __init__(self, run: Run, tag: bytes, gate: asyncio.Lock) -> None:
        self._run = run
        self._tag = tag
        self._gate = gate
        self._waiting: list[Seat] = []
        self._walking: asyncio.Task[None] | None = None

    def board(self, stirred: asyncio.Event) -> Seat:
        """A place in the next one."""
        seat = Seat(stirred)
        self._waiting.append(seat)
        if self._walking is None or self._walking.done():
            self._walking = asyncio.create_task(self._go())
        return seat

    def close(self) -> None:
        """Nobody is there any more."""
        if self._walking is not None:
            self._walking.cancel()

    async def _go(self) -> None:
        while self._waiting:
            seats, self._waiting = self._waiting, []
            failure: Exception | None = Missed()
            try:
                await self._walk(seats)
                failure = None
            except Forgotten:
                pass
            except Exception:  # of what is no Redis; who boarded meanwhile waits for this task
                _log.exception("a walk of a namespace's pages went wrong")
                await asyncio.sleep(FAULT_S)
            finally:
                for seat in _there(seats):
                    seat.end(failure)

    async def _walk(self, seats: list[Seat]) -> None:
        """One walk for them. Raises Forgotten."""
        snapshot = Snapshot(self._tag)
        heading = None
        while heading is None and _there(seats):
            heading = await self._step(snapshot.begin())
        if heading is None:
            return
        for seat in _there(seats):
            seat.position = heading.position
            seat.give(of_heading(heading))
        while not snapshot.done and _there(seats):
            found = await self._step(snapshot.step())
            if found is not None and found.pages:
                part = of_pages(found)
                for seat in _there(seats):
                    seat.give(part)
                await _all_have_room(_there(seats))

    async def _step(self, flow: Flow[T]) -> T | None:
        """In turn with all other walks; None for a step to be tried again. Raises Forgotten."""
        async with self._gate:
            began_s = time.monotonic()
            try:
                found: T | None = await self._run(flow, self._tag)
            except Forgotten:
                raise
            except RegistryError:
                found = None
            if found is not None:
                await asyncio.sleep(time.monotonic() - began_s)
        if found is None:
            await asyncio.sleep(RETRY_S)
        return found


def _there(seats: list[Seat]) -> list[Seat]:
    return [seat for seat in seats if not (seat.left or seat.ended)]


async def _all_have_room(seats: list[Seat]) -> None:
    for seat in seats:
        try:
            await asyncio.wait_for(seat.room.wait(), PATIENCE_S)
        except asyncio.TimeoutError:
            seat.end(Slow())
