"""Bounded waits for what another process or SGLang's own loop brings about."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(done: Callable[[], bool], what: str, wait_s: float = 20.0) -> None:
    """Ask again every 10 ms; TimeoutError that names what did not come."""
    end = time.monotonic() + wait_s
    while not done():
        if time.monotonic() > end:
            raise TimeoutError(f"still waiting for {what} after {wait_s:.0f} s")
        time.sleep(0.01)
