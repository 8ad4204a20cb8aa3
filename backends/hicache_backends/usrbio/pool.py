"""The rings of one direction; each serves one call at a time."""

from __future__ import annotations

import errno
import threading
from typing import Generic, Protocol, TypeVar

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import IoResult


class PooledRing(Protocol):
    """What the pool asks of a ring."""

    def quarantined(self) -> int:
        """Slots that wait for a completion that nobody awaits."""
        ...


_R = TypeVar("_R", bound=PooledRing)


class RingPool(Generic[_R]):
    """Calls wait here for a ring, none for a ring that another holds."""

    def __init__(self, rings: list[_R]) -> None:
        self._free = rings[:]
        self._changed = threading.Condition()

    def take(self, deadline: Deadline) -> _R | None:
        """The free ring with the fewest slots in quarantine; None at the deadline."""
        with self._changed:
            while not self._free:
                if not self._changed.wait(deadline.remaining_ms() / 1000):
                    return None
            ring = min(reversed(self._free), key=lambda ring: ring.quarantined())
            self._free.remove(ring)
            return ring

    def look(self) -> None:
        """Have the free rings notice what has come for them."""
        with self._changed:
            for ring in self._free:
                ring.quarantined()

    def give(self, ring: _R) -> None:
        """The call is over."""
        with self._changed:
            self._free.append(ring)
            self._changed.notify()


def timed_out(count: int) -> IoResult:
    """Of a call that did not get to begin."""
    return IoResult(np.full(count, -errno.ETIMEDOUT, np.int64), np.zeros(count, np.uint64))
