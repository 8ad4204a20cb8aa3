"""One Redis server behind the service: its connections, and whether it is worth asking."""

from __future__ import annotations

import logging
from contextlib import suppress

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, RegistryRefused, RegistryUnavailable
from kvmanager import policy, resp
from kvmanager.aio_connection import AsyncPool
from kvmanager.aio_driver import AsyncDriver
from kvmanager.connection import Pool
from kvmanager.control.census import clock
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.flow import Flow, T
from kvmanager.options import RegistryOptions
from kvmanager.probe import UNIT_MS, monotonic_units

MAX_TIMEOUT_MS = 10_000.0
PATIENCE_MS = 500.0
"""Redis has this long at least, whatever a caller says: its haste must not open the breaker."""
KEPT_CONNECTIONS = 64
_PING = resp.command(b"PING")
_CLUSTER_STATE = resp.command(b"CLUSTER", b"INFO")

_log = logging.getLogger(__name__)


class Node:
    """Shared by all requests whose keys it holds."""

    def __init__(self, endpoint: Endpoint, connect_timeout_ms: float, *, clustered: bool) -> None:
        """`clustered`: it is a part of a Cluster, which as a whole may be down."""
        pool = Pool(endpoint, connect_timeout_ms)
        self._clustered = clustered
        self._driver = Driver(pool, RegistryOptions(timeout_ms=MAX_TIMEOUT_MS))
        connections = AsyncPool(pool, connect_timeout_ms, keep=KEPT_CONNECTIONS, stands_still=True)
        self._io = AsyncDriver(self._driver, connections)
        self.clock_ahead: int | None = None
        """The server's clock against the monotonic one, in access stamps."""
        self._told_of_policy = False
        self._complaint = ""

    @property
    def down(self) -> bool:
        """Whether requests are refused without asking."""
        return self._driver.breaker.is_open

    async def run(self, flow: Flow[T], deadline: Deadline) -> T:
        """Carry a flow out. Raises RegistryError."""
        return await self._io.run(flow, deadline)

    async def ask(self, command: bytes, deadline: Deadline) -> resp.Reply:
        """The reply to one command. Raises RegistryError."""
        return await self.run(_once(command), deadline)

    async def ping(self) -> None:
        """Raises RegistryError if it does not answer, RegistryRefused if it lets nobody in."""
        if self.down and self._complaint:
            raise RegistryRefused(self._complaint)
        await self.ask(_PING, Deadline.after_ms(PATIENCE_MS))

    async def tend(self) -> None:
        """Notice that the server went before a request does, and that it answers again; read its
        clock; warn of its settings, once."""
        if not self.down:
            await self._listen()
        elif await self._answers():
            self._driver.breaker.close()
            _log.info("Redis answers again: %s", self._driver.pool.shown)
        if not self.down:
            await self._read_clock()
        self._told_of_policy = self._told_of_policy or await self._tell_of_policy()

    async def _listen(self) -> None:
        """A refusal is logged once; one that opens the breaker was."""
        try:
            await self.ping()
        except RegistryRefused as error:
            if not self.down and str(error) != self._complaint:
                _log.warning("Redis refuses: %s: %s", self._driver.pool.shown, error)
            self._complaint = str(error)
        except RegistryError:
            pass
        else:
            self._complaint = ""

    async def _read_clock(self) -> None:
        with suppress(RegistryError):
            now_s = await self.run(clock(), Deadline.after_ms(PATIENCE_MS))
            self.clock_ahead = int(now_s * 1000) // UNIT_MS - monotonic_units()

    async def close(self) -> None:
        """Close the idle connections, and the others when their calls end."""
        self._driver.closed = True
        await self._io.pool.clear()

    async def _tell_of_policy(self) -> bool:
        """Whether the server has said, or does not let this user know."""
        try:
            told = await self.ask(policy.MEMORY, Deadline.after_ms(PATIENCE_MS))
        except RegistryUnavailable:
            return False
        except RegistryError:
            return True
        said = policy.warning(told, self._driver.pool.shown)
        if said:
            _log.warning("%s", said)
        return True

    async def _answers(self) -> bool:
        """Asks past the breaker."""
        deadline = Deadline.after_ms(PATIENCE_MS)
        try:
            connection = await self._io.pool.take(deadline)
        except RegistryError as error:
            self._complaint = str(error) if isinstance(error, RegistryRefused) else ""
            return False
        question = _CLUSTER_STATE if self._clustered else _PING
        try:
            said = resp.parse(await connection.exchange(question, deadline))
        except (RegistryError, OSError):
            return False
        finally:
            await self._io.pool.give(connection)
        return not self._clustered or (isinstance(said, bytes) and b"cluster_state:ok" in said)


def _once(command: bytes) -> Flow[resp.Reply]:
    reply: resp.Reply = yield command
    return reply
