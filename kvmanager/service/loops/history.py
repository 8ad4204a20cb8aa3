"""Keeps samples of each tenant's sums, by which figures are of a window and curves are drawn."""

from __future__ import annotations

from kvmanager import history, keys
from kvmanager.leases import LeaseLost
from kvmanager.service.loops.looking import EVERY_S
from kvmanager.service.loops.loop import Worker
from kvmanager.tenant_view import sample_of

TASK = b"history"


class Sampling:
    """The task. One service does it for a tenant, whoever has its lease."""

    def __init__(self, worker: Worker) -> None:
        self.every_s = float(history.RESOLUTIONS[0].step_s)
        self._worker = worker

    async def step(self) -> None:
        """A sample of each tenant."""
        run = self._worker.run
        seen = await self._worker.control.census.read(run, EVERY_S)
        for tenant, looks in seen.looks.items():
            tag = keys.tenant_tag(tenant)
            lease = await self._worker.lead(tag, TASK, self.every_s)
            if lease is None:
                continue
            try:
                await run(history.add(lease, tag, sample_of(looks, seen.at_s)), tag)
            except LeaseLost:
                continue  # another service was faster
