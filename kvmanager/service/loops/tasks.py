"""All loops of the service."""

from __future__ import annotations

from collections.abc import Callable

from kvmanager.service.loops.history import Sampling
from kvmanager.service.loops.looking import Looking
from kvmanager.service.loops.loop import Loop, Task, Worker
from kvmanager.service.loops.losses import Losing
from kvmanager.service.loops.popularity import Ranking
from kvmanager.service.loops.settling import Settling
from kvmanager.service.loops.sweeping import Sweeping

MADE_BY: tuple[Callable[[Worker], Task], ...] = (
    Sweeping,
    Settling,
    Looking,
    Sampling,
    Ranking,
    Losing,
)
"""One line a task, so that what runs can be read here."""


def make_loops(worker: Worker) -> list[Loop]:
    """A loop for each task."""
    return [Loop(make(worker), worker) for make in MADE_BY]
