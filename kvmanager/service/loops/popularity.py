"""Merges what processes say they load most into a ranking of each tenant's prefixes."""

from __future__ import annotations

import time
from collections.abc import Sequence

from kvmanager import keys
from kvmanager.control import popularity
from kvmanager.control.census import Look
from kvmanager.control.popularity import Told
from kvmanager.service.loops.each import each
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
        self._last_s = {name: last_s for name, last_s in self._last_s.items() if name in seen.looks}
        await each(seen.looks, lambda tenant: self._merge(tenant, seen.looks[tenant]))

    async def _merge(self, tenant: str, looks: Sequence[Look]) -> None:
        now_s = time.monotonic()
        since_s = now_s - self._last_s.pop(tenant, now_s - self.every_s)
        told = [
            Told(look.record.tag, process, record)
            for look in looks
            for process, record in look.records.items()
        ]
        if not told:
            return
        tag = keys.tenant_tag(tenant)
        lease = await self._worker.lead(tag, TASK, self.every_s)
        if lease is not None:
            await self._worker.run(popularity.merge(lease, tag, told, since_s), tag)
            self._last_s[tenant] = now_s
