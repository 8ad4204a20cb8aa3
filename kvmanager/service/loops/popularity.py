"""Merges what processes say they load most into a ranking of each tenant's prefixes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvmanager import keys, popularity
from kvmanager.census import Look
from kvmanager.leases import LeaseLost
from kvmanager.popularity import Told
from kvmanager.service.loops.looking import EVERY_S
from kvmanager.service.loops.loop import Worker

TASK = b"popularity"


class Ranking:
    """The task. One service does it for a tenant, whoever has its lease."""

    def __init__(self, worker: Worker) -> None:
        self.every_s = EVERY_S  # reports come every ten seconds: most of them are met
        self._worker = worker
        self._last_s: dict[str, float] = {}

    async def step(self) -> None:
        """The reports of each tenant's processes."""
        seen = await self._worker.control.census.read(self._worker.run, EVERY_S)
        before, self._last_s = self._last_s, {}
        for tenant, looks in seen.looks.items():
            now_s = time.monotonic()
            since_s = now_s - before.get(tenant, now_s - self.every_s)
            if await self._merged(tenant, looks, since_s):
                self._last_s[tenant] = now_s

    async def _merged(self, tenant: str, looks: Sequence[Look], since_s: float) -> bool:
        told = [
            Told(look.record.tag, process, record)
            for look in looks
            for process, record in look.records.items()
        ]
        if not told:
            return False
        tag = keys.tenant_tag(tenant)
        lease = await self._worker.lead(tag, TASK, self.every_s)
        if lease is None:
            return False
        try:
            await self._worker.run(popularity.merge(lease, tag, told, since_s), tag)
        except LeaseLost:
            return False  # another service was faster
        return True
