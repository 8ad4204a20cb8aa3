"""A thread that spins in Python, as an inference engine's scheduler does beside its storage."""

from __future__ import annotations

import threading
import time
from types import TracebackType


class Spinner:
    """Spins for as long as its context lasts. `progress` counts its rounds: whoever takes the
    interpreter lock from it, or the processor, slows it down."""

    def __init__(self) -> None:
        self.progress = 0
        self._on = True
        self._thread = threading.Thread(target=self._spin, name="spinner", daemon=True)

    def __enter__(self) -> Spinner:
        self._thread.start()
        while not self.progress:
            time.sleep(0.001)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._on = False
        self._thread.join()

    def _spin(self) -> None:
        while self._on:
            self.progress += 1
