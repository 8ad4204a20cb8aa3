"""Carrying flows out over connections, and noticing when there is no point in trying."""

from __future__ import annotations

import logging
import os
import time

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, RegistryUnavailable
from kvmanager import resp
from kvmanager.breaker import Breaker
from kvmanager.connection import Channel, ChannelPool
from kvmanager.flow import Flow, T
from kvmanager.options import RegistryOptions
from kvmanager.probe import Probe

_log = logging.getLogger(__name__)


class Driver:
    """The I/O of one session. Thread safe; of no use in a forked child."""

    def __init__(self, pool: ChannelPool, options: RegistryOptions) -> None:
        self.pool = pool
        self.breaker = Breaker(options.breaker_failures)
        self.timeout_ms = options.timeout_ms
        self._timeout_ns = int(options.timeout_ms * 1e6)
        self.calls = self.failures = self.round_trips = 0
        self.closed = False
        self._pid = os.getpid()

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a child of the process that made it."""
        return os.getpid() != self._pid

    def check(self) -> None:
        """Raises RegistryUnavailable where a data call is not worth trying."""
        if os.getpid() != self._pid:
            raise RegistryUnavailable("this session belongs to the parent of this fork")
        if self.closed:
            raise RegistryUnavailable("this session was closed")
        if self.breaker.is_open:
            raise RegistryUnavailable(f"the registry is down: {self.breaker.reason}")

    def limit(self, deadline: Deadline) -> Deadline:
        """The caller's deadline, or the options' if that is earlier."""
        at_ns = time.monotonic_ns() + self._timeout_ns
        return deadline if deadline.at_ns <= at_ns else Deadline(at_ns)

    def run(self, flow: Flow[T], deadline: Deadline) -> T:
        """A call of the data path, which returns at once while the registry is down."""
        self.check()
        connection = self.connect(deadline, fresh=False)
        try:
            return self.run_on(connection, flow, deadline)
        finally:
            self.pool.give(connection)

    def probe(self, probe: Probe, deadline: Deadline) -> resp.Reply | list[bytes]:
        """What a probe by itself is answered, without the flow around it, which costs more Python
        than the rest of such a call. Raises NoScript as well."""
        self.check()
        connection = self.connect(deadline, fresh=False)
        self.calls += 1
        try:
            reply = self._exchange(connection, probe, deadline)
        finally:
            self.pool.give(connection)
        self.breaker.succeeded()
        return reply

    def run_on(self, connection: Channel, flow: Flow[T], deadline: Deadline) -> T:
        """Any call, over this connection. Raises RegistryError."""
        self.calls += 1
        try:
            request = next(flow)
            while True:
                try:
                    reply = self._exchange(connection, request, deadline)
                except RegistryError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(reply)
        except StopIteration as done:
            self.breaker.succeeded()
            value: T = done.value
            return value

    def connect(self, deadline: Deadline, *, fresh: bool) -> Channel:
        """An idle connection, or a new one. Raises RegistryUnavailable, RegistryRefused."""
        try:
            return self.pool.connect(deadline) if fresh else self.pool.take(deadline)
        except RegistryError as error:
            self.failed(str(error), at_once=not deadline.passed)
            raise

    def lost(self, error: OSError) -> RegistryUnavailable:
        """What an exchange without its reply means; the breaker is told."""
        if not isinstance(error, TimeoutError):
            self.pool.clear()  # the server went: the other connections are as dead
        reason = f"{self.pool.shown}: {error or type(error).__name__}"
        self.failed(reason, at_once=False)
        return RegistryUnavailable(reason)

    def probed(
        self, probe: Probe, locations: list[bytes] | None, tail: bytes, raw: bytes
    ) -> resp.Reply | list[bytes]:
        """What an exchange of a probe said; see `Connection.probe`."""
        if locations is not None:
            return locations
        self.round_trips += 1
        probe.learn(tail)
        return self.read(raw)

    def read(self, raw: bytes) -> resp.Reply:
        """The reply's value. Raises the translated error of an error reply."""
        try:
            reply: resp.Reply = self.pool.parse(raw)
        except resp.NoScript:
            raise
        except RegistryUnavailable as error:
            self.failed(str(error), at_once=True)
            raise
        return reply

    def failed(self, reason: str, *, at_once: bool) -> None:
        """Count a failure; see `Breaker.failed`."""
        self.failures += 1
        if self.breaker.failed(reason, at_once=at_once):
            self.pool.clear()
            _log.warning("the registry is down: %s", reason)

    def _exchange(
        self, connection: Channel, request: bytes | Probe, deadline: Deadline
    ) -> resp.Reply | list[bytes]:
        self.round_trips += 1
        try:
            if isinstance(request, Probe):
                return self.probed(request, *connection.probe(request, deadline))
            return self.read(connection.exchange(request, deadline))
        except OSError as error:
            raise self.lost(error) from error
