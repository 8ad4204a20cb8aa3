"""Looks at all namespaces, so that answers and scrapes find figures that were read already."""

from __future__ import annotations

import time

from kvmanager.service.loops.loop import Worker

EVERY_S = 5.0
_SHARE = 20
"""A look takes a twentieth of the time at most, however many namespaces there are."""


class Looking:
    """The task. Every service does it for itself; it changes nothing in Redis."""

    def __init__(self, worker: Worker) -> None:
        self.every_s = EVERY_S
        self._worker = worker

    async def step(self) -> None:
        """One look."""
        began_s = time.monotonic()
        await self._worker.control.census.read(self._worker.run, 0.0)
        self.every_s = max(EVERY_S, _SHARE * (time.monotonic() - began_s))
