"""The registry for programs that run on asyncio: the same calls, as coroutines.

Calls go over asyncio's own connections. What keeps the session alive is shared with the threaded
client and runs in its daemon thread, so that a busy event loop misses no heartbeat.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from concurrent import futures
from types import TracebackType

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, RegistryUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager.aio_driver import async_driver
from kvmanager.connect import connect_registry
from kvmanager.flow import Flow, T
from kvmanager.model import Claim, EntrySource, Lookup, Member, Orders, Published, Removal, State
from kvmanager.options import RegistryOptions
from kvmanager.session import RedisRegistry

ALONE_RETRY_S = 0.001


async def connect_async_registry(
    endpoint: str,
    namespace: Namespace,
    member: Member,
    *,
    entries: EntrySource | None = None,
    options: RegistryOptions | None = None,
) -> AsyncRegistry:
    """As `connect.connect_registry`. `entries` is called by the session's own thread."""
    connecting = asyncio.create_task(
        asyncio.to_thread(
            connect_registry, endpoint, namespace, member, entries=entries, options=options
        )
    )
    try:
        return AsyncRegistry(await asyncio.shield(connecting))
    except asyncio.CancelledError:
        connecting.add_done_callback(_abandon)
        raise


class AsyncRegistry:
    """A session with the registry. Its calls promise what those of `Registry` do.

    A cancelled call ends at once and its connection is closed, since a reply is still to come. A
    cancelled publish or remove may have been carried out, and is journalled like a failed one.
    Used from the event loop that it was made in.
    """

    def __init__(self, session: RedisRegistry) -> None:
        self._session = session
        self._core = session.core
        self._driver = session.driver
        self._io = async_driver(session.driver, session.core.options.connect_timeout_ms)

    @property
    def state(self) -> State:
        return self._session.state

    async def lookup(
        self,
        digests: Sequence[bytes],
        media: Sequence[bytes],
        deadline: Deadline,
        *,
        prefix: bool = True,
        why: bool = True,
    ) -> Lookup:
        return await self._io.run(
            self._core.lookup(digests, media, prefix=prefix, why=why), deadline
        )

    async def claim(
        self, digests: Sequence[bytes], deadline: Deadline, *, token: bytes = b""
    ) -> tuple[bytes, list[Claim]]:
        ttl_ms = deadline.remaining_ms() + self._core.options.claim_grace_ms
        return await self._io.run(self._core.claim(digests, ttl_ms, token), deadline)

    async def publish(
        self, entries: Sequence[PageEntry], token: bytes, deadline: Deadline
    ) -> list[Published]:
        return await self._mutate(lambda: self._core.publish(entries, token), deadline)

    async def abort(self, digests: Sequence[bytes], token: bytes, deadline: Deadline) -> None:
        await self._io.run(self._core.abort(digests, token), deadline)

    async def remove(
        self,
        entries: Sequence[PageEntry],
        deadline: Deadline,
        *,
        touched_ms: Sequence[int] | None = None,
    ) -> list[Removal]:
        return await self._mutate(lambda: self._core.remove(entries, touched_ms), deadline)

    async def report_bad(
        self, digest: bytes, location: bytes, deadline: Deadline, *, parent: bytes = UNKNOWN
    ) -> None:
        await self._io.run(self._core.report_bad(digest, location, parent), deadline)

    async def clear_namespace(self, deadline: Deadline) -> int:
        return await self._io.run(self._core.clear_namespace(), deadline)

    def start(self, on_orders: Callable[[Orders], Awaitable[None]]) -> None:
        """Begin to send heartbeats. `on_orders` runs in this event loop; orders that it has not
        carried out within half a heartbeat's time are given again."""
        loop = asyncio.get_running_loop()
        patience_s = self._core.options.heartbeat_ms / 2000

        async def obey(orders: Orders) -> None:
            await on_orders(orders)

        def relay(orders: Orders) -> None:
            obeying = asyncio.run_coroutine_threadsafe(obey(orders), loop)
            try:
                obeying.result(patience_s)
            except futures.TimeoutError:  # on Python 3.10 another class than TimeoutError
                obeying.cancel()
                raise RegistryUnavailable("the event loop was too busy for orders") from None

        self._session.start(relay)

    async def close(self, timeout_ms: float = 2000) -> None:
        """As `Registry.close`."""
        await self._io.pool.clear()
        await asyncio.shield(asyncio.to_thread(self._session.close, timeout_ms))

    def stats(self) -> dict[str, int | float | str]:
        """As `Registry.stats`."""
        return self._session.stats()

    async def __aenter__(self) -> AsyncRegistry:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _mutate(self, call: Callable[[], Flow[T]], deadline: Deadline) -> T:
        if self._driver.forked:
            self._driver.check()
        deadline = self._driver.limit(deadline)
        alone = False
        try:
            try:
                alone = await self._alone(deadline)
            finally:
                flow = call()  # from here on it is in the journal, cancelled or not
            if not alone:
                raise RegistryUnavailable("another mutation of this store waits for its reply")
            return await self._io.run(flow, deadline)
        except (RegistryError, asyncio.CancelledError):
            self._core.lagging()
            raise
        finally:
            if alone:
                self._session.sending.release()

    async def _alone(self, deadline: Deadline) -> bool:
        """The lock that the session's thread takes too, for one round trip at a time."""
        while not self._session.sending.acquire(blocking=False):
            if deadline.passed:
                return False
            await asyncio.sleep(ALONE_RETRY_S)
        return True


def _abandon(connecting: asyncio.Task[RedisRegistry]) -> None:
    """Of a caller that was cancelled meanwhile."""
    if not connecting.cancelled() and connecting.exception() is None:
        asyncio.get_running_loop().run_in_executor(None, connecting.result().close)
