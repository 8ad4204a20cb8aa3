"""One reader of each namespace's events for all who listen to it.

Everything is bounded: a listener that does not take its events loses its connection, and comes back
to the stream in Redis or to a snapshot. Redis is asked for a single listener only while that one
catches up, a short step at a time.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from hicache_backends.errors import RegistryError
from kvmanager.control.events import Event, Heard, listen
from kvmanager.service.codec import Refusal
from kvmanager.service.event_messages import of_event
from kvmanager.service.walks import FAULT_S, RETRY_S, Run, Walks

MAX_LISTENERS = 256
"""Of one service. Those with the same tenants have no more than what they leave free: alone half
of them, and the next ones half of that."""
POLL_S = 0.1

_log = logging.getLogger(__name__)


class Ear(Protocol):
    """Who listens to a feed."""

    def offer(self, sequence: str, message: bytes) -> None:
        """This happened, as it is sent."""

    def stir(self) -> None:
        """Look at the feed: something may have been missed, or it ends."""


class Feed:
    """Keeps up with one namespace while somebody listens. `position`: the newest event that was
    told; `resets`: how often something may have been missed."""

    def __init__(self, run: Run, tag: bytes, gate: asyncio.Lock) -> None:
        self.run = run
        self.tag = tag
        self.walks = Walks(run, tag, gate)
        self.position = ""
        self.resets = 0
        self.closed = False
        self.ears: set[Ear] = set()
        self._epoch: int | None = None
        self.following: asyncio.Task[None] | None = None

    async def follow(self) -> None:
        """Until it is cancelled."""
        while True:
            asked = self.position
            try:
                heard = await self.run(listen(self.tag, asked), self.tag)
            except RegistryError:
                await asyncio.sleep(RETRY_S)
                continue
            except Exception:  # of what is no Redis; listeners wait for this one alone
                _log.exception("following a namespace's events went wrong")
                await asyncio.sleep(FAULT_S)
                continue
            more = asked == self.position and self._take(heard)
            if not more:
                await asyncio.sleep(RETRY_S if heard is None else POLL_S)

    def close(self) -> None:
        """The service ends."""
        self.closed = True
        for ear in self.ears:
            ear.stir()

    def _take(self, heard: Heard | None) -> bool:
        """Whether there is more to ask for at once."""
        if heard is None or heard.lost:
            if self.position:
                self._reset()
            return False
        for event in heard.events:
            self._tell(event)
        self.position = heard.events[-1].id if heard.events else heard.last
        if not heard.more:
            if self._epoch not in (None, heard.epoch):
                self._reset()  # raised by something that tells nobody
            self._epoch = heard.epoch
        return heard.more

    def _tell(self, event: Event) -> None:
        if event.kind == "begin":  # or one of a later version: nobody here can tell what it does
            self._reset()
        if event.kind == "cleared":
            self._epoch = event.epoch
        message = of_event(event)
        for ear in self.ears:
            ear.offer(event.id, message)

    def _reset(self) -> None:
        self.position = ""
        self._epoch = None
        self.resets += 1
        for ear in self.ears:
            ear.stir()


class Feeds:
    """All feeds of one service; used in one event loop."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._feeds: dict[bytes, Feed] = {}
        self._closed = False
        self._gate = asyncio.Lock()
        self._held: Counter[frozenset[str]] = Counter()

    @property
    def listeners(self) -> int:
        """How many there are."""
        return self._held.total()

    @contextmanager
    def feed(self, tag: bytes, tenants: frozenset[str]) -> Iterator[Feed]:
        """The one of a namespace; add yourself to its ears. `tenants`: of the listener's token.
        Raises Refusal: too many listeners."""
        if self._closed or self._held[tenants] >= MAX_LISTENERS - self.listeners:
            raise Refusal(429, "listeners", "too many listen at once; try another service")
        found = self._feeds.get(tag)
        if found is None:
            found = self._feeds[tag] = Feed(self._run, tag, self._gate)
            found.following = asyncio.create_task(found.follow())
        self._held[tenants] += 1
        try:
            yield found
        finally:
            self._held[tenants] -= 1
            if not found.ears and self._feeds.get(tag) is found:
                del self._feeds[tag]
                found.walks.close()
                if found.following is not None:
                    found.following.cancel()

    def close(self) -> None:
        """End every listener's stream, and take no more."""
        self._closed = True
        for feed in self._feeds.values():
            feed.close()
