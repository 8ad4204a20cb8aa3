"""The thread that keeps a session alive."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from hicache_backends.deadline import Deadline
from hicache_backends.errors import HiCacheError, RegistryError, RegistryRefused
from kvmanager.driver import Driver
from kvmanager.model import Orders
from kvmanager.options import RegistryOptions
from kvmanager.upkeep import Upkeep

PROBE_MS = 500.0
"""A registry that is down is asked again this often, if heartbeats are not more frequent."""

_log = logging.getLogger(__name__)


class Heartbeat:
    """A daemon thread. It beats every `heartbeat_ms`, or at once when woken."""

    def __init__(self, upkeep: Upkeep, driver: Driver, options: RegistryOptions) -> None:
        self._upkeep = upkeep
        self._driver = driver
        self._options = options
        self._on_orders: Callable[[Orders], None] = lambda orders: None
        self._thread: threading.Thread | None = None
        self._due = threading.Event()
        self._ended = threading.Event()
        self._left = False
        self._complaint = ""
        self.beats = 0

    def wake(self) -> None:
        """Beat at once, unless the registry is down: that is asked at its own pace."""
        if not self._driver.breaker.is_open:
            self._due.set()

    def begin(self, on_orders: Callable[[Orders], None]) -> None:
        """Start the thread."""
        self._on_orders = on_orders
        self._thread = threading.Thread(target=self._run, name="hicache-registry", daemon=True)
        self._thread.start()

    def end(self, deadline: Deadline) -> bool:
        """Stop the thread and wait for it. False if it did not end by the deadline: it closes the
        connection, in which it may still wait, when it does."""
        self._ended.set()
        self._due.set()
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(deadline.remaining_ms() / 1000)
        self._left = thread.is_alive()
        return not self._left

    def _run(self) -> None:
        while not self._ended.is_set():
            self._due.clear()
            pause = True
            try:
                self._tick()
                self._complaint = ""
                pause = not self._upkeep.catching_up
            except RegistryError as error:
                self._note(error)
            except Exception:  # whatever an owner's callback does, the next beat comes
                _log.exception("a heartbeat went wrong")
            if pause:
                self._due.wait(self._pause_s())
        if self._left:
            self._upkeep.disconnect()

    def _tick(self) -> None:
        orders = self._upkeep.beat(Deadline.after_ms(self._options.timeout_ms))
        self.beats += 1
        try:
            self._on_orders(orders)
        except HiCacheError as error:
            _log.warning("the orders of epoch %d could not be obeyed: %s", orders.epoch, error)
            return
        self._upkeep.obeyed(orders)
        self._upkeep.catch_up(self._ended, Deadline.after_ms(self._options.heartbeat_ms))
        self._upkeep.report(Deadline.after_ms(self._options.timeout_ms))
        self._upkeep.sweep()

    def _pause_s(self) -> float:
        pause_ms = self._options.heartbeat_ms
        if self._driver.breaker.is_open:
            pause_ms = min(pause_ms, PROBE_MS)
        return pause_ms / 1000

    def _note(self, error: RegistryError) -> None:
        """The breaker warns of a registry that is down; this is for one that refuses."""
        complaint = str(error)
        if complaint != self._complaint and not self._driver.breaker.is_open:
            level = logging.WARNING if isinstance(error, RegistryRefused) else logging.INFO
            _log.log(level, "the registry did not take the heartbeat: %s", complaint)
        self._complaint = complaint
