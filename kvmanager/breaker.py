"""Whether the registry is worth asking."""

from __future__ import annotations

import threading


class Breaker:
    """Opens after some failures in a row, or at once when no connection can be made.

    Only `close`, called by the background probe, closes it again.
    """

    def __init__(self, failures: int) -> None:
        self._limit = failures
        self._row = 0
        self._lock = threading.Lock()
        self.is_open = False
        self.reason = ""

    def succeeded(self) -> None:
        """A call was answered."""
        self._row = 0

    def failed(self, reason: str, *, at_once: bool = False) -> bool:
        """A call was not answered. True if that opened the breaker."""
        with self._lock:
            self._row += 1
            self.reason = reason
            if self.is_open or not (at_once or self._row >= self._limit):
                return False
            self.is_open = True
            return True

    def close(self) -> bool:
        """The probe was answered. True if the breaker was open."""
        with self._lock:
            was_open, self.is_open = self.is_open, False
            self._row = 0
            return was_open
