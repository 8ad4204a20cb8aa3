"""Who may move bytes now: byte-rate caps, and loads before stores."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hicache_backends.deadline import Deadline

_MAX_YIELD_S = 0.05
_BURST_S = 0.1


class RateCap:
    """A token bucket in bytes; `None` for no cap."""

    def __init__(self, bytes_per_s: int | None) -> None:
        self._rate = bytes_per_s
        self._lock = threading.Lock()
        self._free_at = time.monotonic()

    def take(self, amount: int, deadline: Deadline) -> bool:
        """Wait until `amount` bytes may move. False, at once, if that is after the deadline."""
        if self._rate is None:
            return True
        with self._lock:
            now = time.monotonic()
            start = max(self._free_at, now - _BURST_S)
            wait_s = start - now
            if wait_s * 1000 > deadline.remaining_ms():
                return False
            self._free_at = start + amount / self._rate
        if wait_s > 0:
            time.sleep(wait_s)
        return True


class LoadsFirst:
    """Stores step aside while loads are under way, for a bounded time so that they go on too."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._loads = 0
        self._waiting = 0

    @contextmanager
    def load(self) -> Iterator[None]:
        """Around a load."""
        with self._changed:
            self._loads += 1
        try:
            yield
        finally:
            with self._changed:
                self._loads -= 1
                if self._waiting and not self._loads:
                    self._changed.notify_all()

    def before_store(self, deadline: Deadline) -> None:
        """Wait for the loads under way to end, at most 50 ms and not past the deadline."""
        with self._changed:
            if not self._loads:
                return
            self._waiting += 1
            try:
                limit_s = min(_MAX_YIELD_S, deadline.remaining_ms() / 2000)
                self._changed.wait_for(lambda: not self._loads, timeout=limit_s)
            finally:
                self._waiting -= 1
