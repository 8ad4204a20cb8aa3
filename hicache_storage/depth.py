"""How many prefetch chunks are in flight: a fixed number, or one that follows throughput."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

_AUTO_MOST = 16
_WINDOW_CHUNKS = 8
_BETTER = 1.05


@dataclass(slots=True)
class Moved:
    """What one chunk moved; filled in by the one who reads it."""

    bytes: int = 0


class Depth:
    """`now` chunks may be in flight, never more than `most`.

    "auto" climbs: a window of chunks is timed at each depth, and the depth moves on in the same
    direction while throughput gains 5 %, else it turns round. Latency is bounded by that: where
    deeper queues add only waiting, throughput does not gain.
    """

    def __init__(self, depth: int | Literal["auto"]) -> None:
        self.auto = depth == "auto"
        self.most = _AUTO_MOST if depth == "auto" else depth
        self.now = 4 if depth == "auto" else depth
        self._step = 1
        self._best = 0.0
        self._lock = threading.Lock()
        self._begin()

    @contextmanager
    def measured(self) -> Iterator[Moved]:
        """Around one chunk."""
        moved = Moved()
        try:
            yield moved
        finally:
            if self.auto:
                self._count(moved.bytes)

    def _begin(self) -> None:
        self._since = time.monotonic()
        self._bytes = 0
        self._chunks = 0

    def _count(self, moved: int) -> None:
        with self._lock:
            self._bytes += moved
            self._chunks += 1
            if self._chunks < _WINDOW_CHUNKS * self.now:
                return
            rate = self._bytes / max(time.monotonic() - self._since, 1e-9)
            if rate < self._best * _BETTER:
                self._step = -self._step
            self._best = rate
            self.now = min(max(self.now + self._step, 1), self.most)
            self._begin()
