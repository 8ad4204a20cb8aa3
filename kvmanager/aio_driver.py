"""Carrying flows out on asyncio."""

from __future__ import annotations

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError
from kvmanager.aio_connection import AsyncChannel, AsyncChannelPool, AsyncPool
from kvmanager.connection import Pool
from kvmanager.driver import Driver
from kvmanager.flow import Flow, T
from kvmanager.http.aio import AsyncHttpPool
from kvmanager.http.connection import HttpPool
from kvmanager.probe import Probe
from kvmanager.resp import Reply


class AsyncDriver:
    """The I/O of one session in one event loop; breaker and counters are `threaded`'s."""

    def __init__(self, threaded: Driver, pool: AsyncChannelPool) -> None:
        self.threaded = threaded
        self.pool = pool

    async def run(self, flow: Flow[T], deadline: Deadline) -> T:
        """As `Driver.run`."""
        self.threaded.check()
        deadline = self.threaded.limit(deadline)
        connection = await self._connect(deadline)
        try:
            return await self._run_on(connection, flow, deadline)
        finally:
            flow.close()
            await self.pool.give(connection)

    async def _connect(self, deadline: Deadline) -> AsyncChannel:
        try:
            return await self.pool.take(deadline)
        except RegistryError as error:
            self.threaded.failed(str(error), at_once=not deadline.passed)
            raise

    async def _run_on(self, connection: AsyncChannel, flow: Flow[T], deadline: Deadline) -> T:
        """As `Driver.run_on`."""
        self.threaded.calls += 1
        try:
            request = next(flow)
            while True:
                try:
                    self.threaded.round_trips += 1
                    reply = await self._exchange(connection, request, deadline)
                except RegistryError as error:
                    request = flow.throw(error)
                else:
                    request = flow.send(reply)
        except StopIteration as done:
            self.threaded.breaker.succeeded()
            value: T = done.value
            return value

    async def _exchange(
        self, connection: AsyncChannel, request: bytes | Probe, deadline: Deadline
    ) -> Reply | list[bytes]:
        try:
            if isinstance(request, Probe):
                return self.threaded.probed(request, *await connection.probe(request, deadline))
            return self.threaded.read(await connection.exchange(request, deadline))
        except OSError as error:
            await self.pool.clear()
            raise self.threaded.lost(error) from error


def async_driver(threaded: Driver, connect_timeout_ms: float) -> AsyncDriver:
    """A driver that connects to wherever `threaded` does."""
    pool = threaded.pool
    if isinstance(pool, HttpPool):
        return AsyncDriver(threaded, AsyncHttpPool(pool.endpoint, connect_timeout_ms))
    if isinstance(pool, Pool):
        return AsyncDriver(threaded, AsyncPool(pool, connect_timeout_ms))
    raise TypeError(f"no asyncio connections to {pool.shown}")
