"""One moment on the monotonic clock by which a call returns."""

from __future__ import annotations

import time
from dataclasses import dataclass

from hicache_backends.errors import ConfigError

_MAX_MS = 365 * 24 * 3600 * 1000.0
"""A year; what is longer, infinity included, counts as that."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at_ns` is on CLOCK_MONOTONIC, so that C code can compare it."""

    at_ns: int

    @classmethod
    def after_ms(cls, timeout_ms: float) -> Deadline:
        """The moment `timeout_ms` from now."""
        if not isinstance(timeout_ms, int | float) or not timeout_ms > 0:
            raise ConfigError(f"timeout_ms must be a number above 0, not {timeout_ms!r}")
        return cls(time.monotonic_ns() + int(min(timeout_ms, _MAX_MS) * 1e6))

    def remaining_ms(self) -> float:
        """Milliseconds left; 0 when past."""
        return max(0.0, (self.at_ns - time.monotonic_ns()) / 1e6)

    @property
    def passed(self) -> bool:
        return time.monotonic_ns() >= self.at_ns
