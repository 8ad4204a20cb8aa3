"""What a session does besides its calls: heartbeats, recovery, sweeping, leaving."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, RegistryRefused, RegistryUnavailable
from hicache_backends.storage import PageEntry
from kvmanager import keys, policy, resp
from kvmanager.connection import Channel
from kvmanager.control.sweep import Sweep
from kvmanager.core import SessionCore
from kvmanager.driver import Driver
from kvmanager.flow import Flow, T, answer
from kvmanager.model import Orders
from kvmanager.recovery import Recovery
from kvmanager.reports import EVERY_S, Report, Reporter, Totals

MAX_BAD = 1024
"""Reports of bad pages kept for an owner that does not obey."""
ENLIST_EVERY_S = 60.0
SWEEP_EVERY_S = 30.0
SWEEP_BUDGET_MS = 20.0
"""Of one heartbeat."""

_log = logging.getLogger(__name__)


class Upkeep:
    """Used by one thread at a time, over a connection of its own; after a failure over a new one.

    `revive` is called before a server that is down is asked again.
    """

    def __init__(
        self,
        core: SessionCore,
        driver: Driver,
        recovery: Recovery,
        sending: threading.Lock,
        revive: Callable[[], None],
    ) -> None:
        self._core = core
        self._driver = driver
        self._recovery = recovery
        self._sending = sending
        self._revive = revive
        self._connection: Channel | None = None
        self._bad: tuple[PageEntry, ...] = ()
        self._policy_seen = False
        self._next_enlist_s = 0.0
        self._sweep: Sweep | None = None
        self._next_sweep_s = time.monotonic() + SWEEP_EVERY_S
        self._reporter: Reporter | None = None
        self._next_report_s = 0.0

    def beat(self, deadline: Deadline) -> Orders:
        """Register, or say that the process is still there. Raises RegistryError."""
        if self._driver.breaker.is_open:
            self.disconnect()
            self._revive()
        beat = self._locked(self._core.beat(), deadline)
        if self._driver.breaker.close():
            _log.info("the registry answers again: %s", self._driver.pool.shown)
        if self._core.wire.direct:
            self._tend(beat.returned, deadline)
        self._bad = (*self._bad, *beat.bad)[-MAX_BAD:]
        return self._core.orders(beat, self._bad)

    def obeyed(self, orders: Orders) -> None:
        """The owner has done what the orders say."""
        self._core.obeyed = orders.epoch
        self._core.mode = orders.mode
        self._bad = ()

    @property
    def catching_up(self) -> bool:
        """Whether the registry lacks something that can be sent now."""
        return self._recovery.due

    def catch_up(self, ended: threading.Event, until: Deadline) -> None:
        """Tell the registry what it lacks, at a bounded rate. Raises RegistryError."""
        rate = self._core.options.announce_pages_per_s
        while self._recovery.due and not until.passed:
            if ended.wait(self.step() / rate):
                return

    def step(self) -> int:
        """One step of that, if one is due; the pages sent. Raises RegistryError."""
        if not self._recovery.due:
            return 0
        return self._locked(self._recovery.step(), Deadline.after_ms(self._driver.timeout_ms))

    def report_from(self, source: Callable[[], Totals]) -> None:
        """What reports are made of."""
        self._reporter = Reporter(source)

    def report(self, deadline: Deadline, *, last: bool = False) -> None:
        """Tell what was counted, if that is due; with `last` what there is still to tell. Raises
        RegistryUnavailable."""
        reporter, now_s = self._reporter, time.monotonic()
        if reporter is None or (now_s < self._next_report_s and not last):
            return
        self._next_report_s = now_s + EVERY_S
        for _ in range(1 + (last and reporter.unanswered)):
            try:
                self._run(self._told(reporter.next()), deadline)
            except RegistryRefused as error:  # a service of an older version, for one
                _log.info("the registry takes no reports: %s", error)
                return
            reporter.applied()

    def sweep(self) -> None:
        """A few milliseconds of the namespace's cleaning, now and then. Raises RegistryError."""
        if not self._core.wire.direct:
            return  # the service's part
        now_s = time.monotonic()
        if self._sweep is None:
            if now_s < self._next_sweep_s:
                return
            self._next_sweep_s = now_s + SWEEP_EVERY_S
            self._sweep = Sweep(self._core.wire.tag)
        budget = Deadline.after_ms(SWEEP_BUDGET_MS)
        while self._sweep is not None and not budget.passed:
            if not self._run(self._sweep.step(), Deadline.after_ms(self._driver.timeout_ms)):
                self._sweep = None

    def leave(self, deadline: Deadline) -> None:
        """Take the process's record away. Raises RegistryError."""
        self._run(answer(self._core.wire.leave()), deadline)

    def disconnect(self) -> None:
        """Close the connection; the next call makes a new one."""
        connection, self._connection = self._connection, None
        self._sweep = None
        if connection is not None:
            connection.close()

    def _locked(self, flow: Flow[T], deadline: Deadline) -> T:
        if not self._sending.acquire(timeout=deadline.remaining_ms() / 1000):
            raise RegistryUnavailable("a mutation of this store is still waiting for its reply")
        try:
            return self._run(flow, deadline)
        finally:
            self._sending.release()

    def _run(self, flow: Flow[T], deadline: Deadline) -> T:
        if self._connection is None:
            self._connection = self._driver.connect(deadline, fresh=True)
        try:
            return self._driver.run_on(self._connection, flow, deadline)
        finally:
            if not self._connection.clean:
                self.disconnect()

    def _told(self, report: Report) -> Flow[None]:
        reply = yield from answer(self._core.wire.figures(report))
        self._core.wire.read_done(reply)

    def _ask(self, request: bytes, deadline: Deadline) -> resp.Reply:
        def flow() -> Flow[resp.Reply]:
            reply: resp.Reply = yield request
            return reply

        return self._run(flow(), deadline)

    def _tend(self, returned: bool, deadline: Deadline) -> None:
        now_s = time.monotonic()
        if not returned:
            self._next_enlist_s = now_s
        if now_s >= self._next_enlist_s and self._enlist(deadline):
            self._next_enlist_s = now_s + ENLIST_EVERY_S
        if not self._policy_seen:
            self._policy_seen = True
            self._warn_of_policy(deadline)

    def _enlist(self, deadline: Deadline) -> bool:
        """Add the namespace to the list of all; whether that was done. In a Cluster the list lies
        elsewhere, on a server that may be down or lose it while this one doesn't."""
        command = self._core.wire.enlist()
        try:
            elsewhere = self._driver.pool.ask_elsewhere(keys.TAGS, command, deadline)
        except RegistryError as error:
            _log.info("the namespace is not in the list of all yet: %s", error)
            return False
        if not elsewhere:
            self._ask(command, deadline)
        return True

    def _warn_of_policy(self, deadline: Deadline) -> None:
        try:
            memory = self._ask(policy.MEMORY, deadline)
        except RegistryError:
            return  # this user may not ask
        said = policy.warning(memory, self._driver.pool.shown)
        if said:
            _log.warning("%s", said)
