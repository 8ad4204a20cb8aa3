"""The Redis behind the service, shared by all its requests."""

from __future__ import annotations

import asyncio
import logging

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, RegistryRefused, RegistryUnavailable
from kvmanager import policy, resp
from kvmanager.aio_connection import AsyncPool
from kvmanager.aio_driver import AsyncDriver
from kvmanager.connection import Pool
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.flow import Flow, T, answer
from kvmanager.options import RegistryOptions
from kvmanager.scripts import Call
from kvmanager.service.codec import Refusal
from kvmanager.service.routes import Answer, Plan

MAX_TIMEOUT_MS = 10_000.0
PATIENCE_MS = 500.0
"""Redis has this long at least, whatever a caller says: its haste must not open the breaker."""
KEPT_CONNECTIONS = 64
RETRY_S = 0.5

_log = logging.getLogger(__name__)


class Backing:
    """Carries plans out; while Redis is down it asks again in the background."""

    def __init__(self, url: str, connect_timeout_ms: float = 1000.0) -> None:
        """Raises ConfigError for a URL that names no Redis."""
        pool = Pool(Endpoint.parse(url), connect_timeout_ms)
        self._driver = Driver(pool, RegistryOptions(timeout_ms=MAX_TIMEOUT_MS))
        self._io = AsyncDriver(
            self._driver, AsyncPool(pool, connect_timeout_ms, keep=KEPT_CONNECTIONS)
        )

    @property
    def shown(self) -> str:
        """Where it is, without secrets."""
        return self._driver.pool.shown

    @property
    def down(self) -> bool:
        """Whether requests are refused without asking."""
        return self._driver.breaker.is_open

    async def ask(self, plan: Plan, tag: bytes, timeout_ms: float) -> Answer:
        """As `run`, for a data route's plan."""
        return await self.run(_carried_out(plan), tag, timeout_ms)

    async def run(self, flow: Flow[T], tag: bytes, timeout_ms: float) -> T:
        """Carry a flow out where the keys of `tag` lie (a hash tag, braces included; b"": keys
        without one). Raises RegistryError, Refusal."""
        patience_ms = min(max(timeout_ms, PATIENCE_MS), MAX_TIMEOUT_MS)
        return await self._io.run(flow, Deadline.after_ms(patience_ms))

    async def ping(self) -> None:
        """Raises RegistryError if Redis does not answer."""
        await self._one(resp.command(b"PING"))

    async def watch(self) -> None:
        """Close the breaker when Redis answers again, and warn of its settings, once; runs until it
        is cancelled."""
        told = False
        while True:
            if self.down and await self._answers():
                self._driver.breaker.close()
                _log.info("Redis answers again: %s", self.shown)
            told = told or await self._tell_of_policy()
            await asyncio.sleep(RETRY_S)

    async def close(self) -> None:
        """Close the idle connections."""
        self._driver.closed = True
        await self._io.pool.clear()

    async def _tell_of_policy(self) -> bool:
        """Whether Redis has said, or does not let this user know."""
        try:
            said = policy.warning(await self._one(policy.MEMORY), self.shown)
        except RegistryUnavailable:
            return False
        except RegistryError:
            return True
        if said:
            _log.warning("%s", said)
        return True

    async def _one(self, command: bytes) -> resp.Reply:
        def flow() -> Flow[resp.Reply]:
            reply: resp.Reply = yield command
            return reply

        return await self._io.run(flow(), Deadline.after_ms(PATIENCE_MS))

    async def _answers(self) -> bool:
        """Asks past the breaker."""
        deadline = Deadline.after_ms(PATIENCE_MS)
        try:
            connection = await self._io.pool.take(deadline)
        except RegistryError:
            return False
        try:
            resp.parse(await connection.exchange(resp.command(b"PING"), deadline))
        except (RegistryError, OSError):
            return False
        finally:
            await self._io.pool.give(connection)
        return True


def _carried_out(plan: Plan) -> Flow[Answer]:
    if isinstance(plan.call, Call):
        reply = yield from answer(plan.call)
    else:
        reply = yield plan.call
    try:
        found = plan.read(reply)
    except RegistryRefused as refused:
        raise Refusal(409, "refused", str(refused)) from None
    after = plan.after(found)
    if after is not None:
        yield after
    return found
