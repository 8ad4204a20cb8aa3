"""Looks at all namespaces, so that answers and scrapes find figures that were read already."""

from __future__ import annotations

from kvmanager.service.loops.loop import Worker

EVERY_S = 5.0


class Looking:
    """The task. Every service does it for itself; it changes nothing in Redis."""

    def __init__(self, worker: Worker) -> None:
        self.every_s = EVERY_S
        self._worker = worker

    async def step(self) -> None:
        """One look, unless there was one just now."""
        await self._worker.control.census.read(self._worker.run, EVERY_S / 2)
