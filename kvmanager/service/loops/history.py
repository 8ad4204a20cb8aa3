"""Keeps samples of each tenant's sums, by which figures are of a window and curves are drawn."""

from __future__ import annotations

from collections.abc import Iterable

from kvmanager import keys, resp
from kvmanager.control import history, ledger
from kvmanager.control.tenant_view import sample_of
from kvmanager.flow import Flow
from kvmanager.service.control.census import Seen
from kvmanager.service.control.roster import gathered
from kvmanager.service.loops.each import each
from kvmanager.service.loops.looking import EVERY_S
from kvmanager.service.loops.loop import Worker

TASK = b"history"


class Sampling:
    """The task. One service does it for a tenant, whoever has its lease."""

    def __init__(self, worker: Worker) -> None:
        self.every_s = float(history.RESOLUTIONS[0].step_s)
        self._worker = worker

    async def step(self) -> None:
        """A sample of each tenant."""
        seen = await self._worker.control.census.read(self._worker.run, EVERY_S)
        await each(seen.looks, lambda tenant: self._sample(seen, tenant))

    async def _sample(self, seen: Seen, tenant: str) -> None:
        run, tag, looks = self._worker.run, keys.tenant_tag(tenant), seen.looks[tenant]
        lease = await self._worker.lead(tag, TASK, self.every_s)
        if lease is None:
            return
        sums = {look.record.tag: look.sums for look in looks}
        known = await run(ledger.read(tag), tag)  # under the lease: nobody else changes it
        went = await self._went(known.known.keys() - sums.keys())
        await run(ledger.keep(lease, tag, known, sums, went), tag)
        await run(history.add(lease, tag, sample_of(looks, known.total(sums), seen.at_s)), tag)

    async def _went(self, tags: Iterable[bytes]) -> set[bytes]:
        """Those of which nothing is counted any more: forgotten, not unreadable."""
        asked = list(tags)
        there = await gathered(self._worker.run, asked, _counted, lambda tag: tag)
        return {tag for tag, counted in zip(asked, there, strict=True) if counted is False}


def _counted(tag: bytes) -> Flow[bool]:
    there: int = yield resp.command(b"EXISTS", b"t" + tag)
    return there != 0
