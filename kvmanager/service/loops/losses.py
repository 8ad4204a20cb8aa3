"""Notices that what was set for tenants is gone: a Redis that comes back empty says nothing."""

from __future__ import annotations

import logging

from kvmanager.control import tenants
from kvmanager.service.loops.loop import Worker

_NAMED = 10

_log = logging.getLogger(__name__)


class Losing:
    """The task. Whether somebody took settings away or Redis lost them is not to be seen, so that
    both are told."""

    def __init__(self, worker: Worker) -> None:
        self.every_s = worker.options.settle_every_s
        self._worker = worker
        self._known: frozenset[str] = frozenset()

    async def step(self) -> None:
        """Compare the tenants that have settings with those of the last step."""
        known = frozenset(await self._worker.run(tenants.names(), tenants.TENANTS))
        gone = sorted(self._known - known)
        self._known = known
        if gone:
            more = f" and {len(gone) - _NAMED:,} more" if len(gone) > _NAMED else ""
            _log.warning(
                "nothing is set any more for the tenants %s%s: they were reset, or Redis came back "
                "without its data; then set quotas, modes and pins again",
                ", ".join(map(repr, gone[:_NAMED])),
                more,
            )
