"""Nothing that a backend call meets may reach SGLang's threads: a failure is a miss, counted."""

from __future__ import annotations

import contextlib
import functools
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TypeVar

import prometheus_client

T = TypeVar("T")

QUIET_S = 30.0
"""A failing call is told at most this often."""
_log = logging.getLogger(__name__)


class Guard:
    """Runs calls, and counts and tells of those that fail. Thread safe."""

    def __init__(self) -> None:
        self.failures: Counter[str] = Counter()
        self._counter = failures_counter()
        self._told: dict[str, float] = {}
        self._lock = threading.Lock()

    def run(self, call: str, otherwise: T, work: Callable[..., T], *args: Any) -> T:
        """What `work(*args)` returns, `otherwise` where it raises."""
        try:
            return work(*args)
        except Exception as error:
            self._tell(call, error)
            return otherwise

    def _tell(self, call: str, error: Exception) -> None:
        now = time.monotonic()
        with self._lock:
            self.failures[call] += 1
            with contextlib.suppress(Exception):  # for several processes it is kept in a file
                self._counter.labels(call).inc()
            if now - self._told.get(call, -QUIET_S) < QUIET_S:
                return
            self._told[call] = now
        _log.warning(
            "%s failed, which counts as a miss (%d times by now): %s: %s",
            call,
            self.failures[call],
            type(error).__name__,
            error,
            exc_info=_log.isEnabledFor(logging.DEBUG),
        )


@functools.cache
def failures_counter() -> prometheus_client.Counter:
    """The process's one: SGLang attaches and detaches plugins as often as it likes."""
    return prometheus_client.Counter(
        "hicache_sglang_failures_total",
        "Calls of the SGLang plugin that failed, each of which counts as misses.",
        ("call",),
    )
