"""Sweeps all namespaces: what vanished processes left, and namespaces that nobody uses any more."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress

from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from kvmanager import keys, resp
from kvmanager.control import namespaces
from kvmanager.control.leases import Lease, LeaseLost
from kvmanager.control.sweep import PRIVATE_MS, SHARED_MS, Sweep
from kvmanager.flow import Flow
from kvmanager.service.loops.loop import Worker

FORGET_MS = 3_600_000
"""A namespace without a medium is forgotten when nobody has used it for so long."""
MAX_NAMESPACES = 4096
"""Of one step; the next one goes on from there."""
_TAGS_A_LOOK = 64
_WORK_S, _REST_S = 0.02, 0.05
"""So long at a time, so that sweeps stay behind the data path."""
_FAMILIES = (b"s", b"q", b"o", b"x", b"y", b"t", b"e", b"f", b"l")
"""Keys of a namespace that have no time to live of their own, besides n{tag}."""

_log = logging.getLogger(__name__)


class Sweeping:
    """The task. Processes that have Redis itself sweep their namespace, too: one lease for all."""

    def __init__(
        self,
        worker: Worker,
        private_ms: int = PRIVATE_MS,
        shared_ms: int = SHARED_MS,
        forget_ms: int = FORGET_MS,
    ) -> None:
        self.every_s = worker.options.sweep_every_s
        self._worker = worker
        self._limits = (private_ms, shared_ms)
        self._forget_ms = forget_ms
        self._cursor = b"0"
        self._rest_at_s = 0.0

    async def step(self) -> None:
        """As many namespaces as are swept in one step."""
        seen = 0
        while True:
            look = namespaces.tags(self._cursor, _TAGS_A_LOOK)
            self._cursor, tags = await self._worker.run(look, keys.TAGS)
            for tag in tags:
                try:
                    await self.sweep(tag)
                except RegistryRefused as error:  # one that is broken must not hide the others
                    namespaces.note(tag, str(error))
                except (RegistryUnavailable, LeaseLost):
                    continue  # its shard does not answer, or another one does it
            seen += len(tags)
            if self._cursor == b"0" or seen >= MAX_NAMESPACES:
                return

    async def sweep(self, tag: bytes) -> None:
        """One namespace, if nobody else does or did just now. Raises RegistryError."""
        private_ms, shared_ms = self._limits
        sweep = Sweep(
            tag,
            lease_ms=max(1000, int(self.every_s * 1000)),
            private_ms=private_ms,
            shared_ms=shared_ms,
        )
        while await self._worker.run(sweep.step(), tag):
            await self._pace()
        if sweep.empty and sweep.lease is not None:
            with suppress(LeaseLost):
                await self._forget(tag, sweep.lease)

    async def _pace(self) -> None:
        now_s = time.monotonic()
        if now_s >= self._rest_at_s:
            await asyncio.sleep(_REST_S)
            self._rest_at_s = time.monotonic() + _WORK_S

    async def _forget(self, tag: bytes, lease: Lease) -> None:
        """Its keys first, then it is taken off the list of all, in another hash tag, and looked at
        again: somebody may have come meanwhile. What is left undone here the next sweep does."""
        run = self._worker.run
        if not await run(self._forgotten(tag, lease), tag):
            return
        done = False
        await run(_command(b"SREM", keys.TAGS, tag), b"")
        try:
            done = await run(self._forgotten(tag, lease), tag)
        finally:
            if not done:
                await run(_command(b"SADD", keys.TAGS, tag), b"")
        if done:
            _log.info("the namespace %s is forgotten: nobody uses it", namespaces.id_of(tag))

    def _forgotten(self, tag: bytes, lease: Lease) -> Flow[bool]:
        own = [family + tag for family in (b"n", *_FAMILIES)]
        reply = yield from lease.act("forget", own, (b"%d" % self._forget_ms,))
        return reply == 1


def _command(*words: bytes) -> Flow[resp.Reply]:
    reply: resp.Reply = yield resp.command(*words)
    return reply
