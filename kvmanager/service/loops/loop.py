"""What the service does by itself: short steps, again and again, for as long as it runs."""

from __future__ import annotations

import asyncio
import logging
import os
import random
from dataclasses import dataclass, field
from typing import Protocol

from hicache_backends.errors import RegistryError, RegistryUnavailable
from kvmanager.control import leases
from kvmanager.control.leases import HOLDER_BYTES, Lease, LeaseLost
from kvmanager.flow import Flow, T
from kvmanager.service.control.base import Control

TIMEOUT_MS = 5000.0
_JITTER = 0.1

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class LoopOptions:
    """How often the loops come round."""

    sweep_every_s: float = 30.0
    settle_every_s: float = 5.0


USUAL = LoopOptions()


@dataclass(frozen=True)
class Worker:
    """Given to each loop: how Redis is asked, and by what name leases are taken."""

    control: Control
    options: LoopOptions = USUAL
    holder: bytes = field(default_factory=lambda: os.urandom(HOLDER_BYTES))

    async def run(self, flow: Flow[T], tag: bytes) -> T:
        """Carry a flow out on the shard of a hash tag. Raises RegistryError, LeaseLost."""
        return await self.control.backing.run(flow, tag, TIMEOUT_MS)

    async def lead(self, tag: bytes, task: bytes, every_s: float) -> Lease | None:
        """The lease of a task that comes round every so often: whoever has it keeps it as long as
        it does come round. None while another one has it. Raises RegistryError."""
        ttl_ms = int(3000 * max(every_s, 1.0))
        return await self.run(leases.take(leases.task_key(tag, task), self.holder, ttl_ms), tag)


class Task(Protocol):
    """One concern. `step` is bounded, and raises what went wrong."""

    every_s: float

    async def step(self) -> None:
        """Do it once."""


class Loop:
    """Carries one task out until it is cancelled; no failure ends it."""

    def __init__(self, task: Task, worker: Worker) -> None:
        self._task = task
        self._worker = worker
        self._complaint = ""
        self.failures = 0

    @property
    def name(self) -> str:
        """By which metrics call it."""
        return type(self._task).__name__.lower()

    async def run(self) -> None:
        """Every so often, not quite evenly: several services must not come at the same moment."""
        while True:
            jitter = 1 + random.uniform(-_JITTER, _JITTER)  # noqa: S311  # no secret
            await asyncio.sleep(self._task.every_s * jitter)
            if not self._worker.control.backing.down:
                await self.once()

    async def once(self) -> None:
        """One step; what goes wrong is logged, once as long as it is the same."""
        try:
            await self._task.step()
            self._complaint = ""
        except (LeaseLost, RegistryUnavailable):
            pass  # another one does it; whoever asks Redis next says that it is down
        except RegistryError as error:
            self._note(str(error))
        except Exception as error:  # a fault in one task must not end the others
            if self._note(f"{type(error).__name__}: {error}"):
                _log.exception("a task of the service went wrong")

    def _note(self, complaint: str) -> bool:
        self.failures += 1
        new = complaint != self._complaint
        if new:
            _log.warning("%s: %s", type(self._task).__name__, complaint)
        self._complaint = complaint
        return new
