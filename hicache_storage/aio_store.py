"""The page store for programs that run on asyncio: the same calls, as coroutines.

Calls run on a few threads of this object's own, so that the event loop never waits for a disk or
the registry. A call that no thread has begun can be cancelled at once; one that is under way owns
its buffers until it returns, so its coroutine first waits for that, by the call's deadline at the
latest, and is cancelled then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import TypeVar

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageClosed
from hicache_backends.outcomes import TIMED_OUT, Outcome
from hicache_storage.page_store import UNTOLD, Buffers, PageStore
from hicache_storage.prefetch import PrefetchHandle, Priority

T = TypeVar("T")


class AsyncPageStore:
    """A `PageStore` behind coroutines; what they take, return and raise is documented there.

    `workers`: calls that run at once; others wait for their turn, inside their deadline. The
    store itself stays usable from threads, and is closed by `close`.
    """

    def __init__(self, store: PageStore, *, workers: int = 8) -> None:
        self.store = store
        self._closed = False
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="hicache-aio")
        self._waiters = ThreadPoolExecutor(64, thread_name_prefix="hicache-aio-wait")

    async def exists(self, keys: Sequence[str], *, timeout_ms: float | None = None) -> int:
        return await self._call(
            lambda left_ms: self.store.exists(keys, timeout_ms=left_ms), lambda: 0, timeout_ms
        )

    async def present(self, keys: Sequence[str], *, timeout_ms: float | None = None) -> list[bool]:
        return await self._call(
            lambda left_ms: self.store.present(keys, timeout_ms=left_ms),
            lambda: [False] * len(keys),
            timeout_ms,
        )

    async def get(
        self, keys: Sequence[str], buffers: Buffers, *, timeout_ms: float | None = None
    ) -> list[Outcome]:
        return await self._call(
            lambda left_ms: self.store.get(keys, buffers, timeout_ms=left_ms),
            lambda: [TIMED_OUT] * len(keys),
            timeout_ms,
        )

    async def set(
        self,
        keys: Sequence[str],
        buffers: Buffers,
        *,
        parent: str | None = UNTOLD,
        timeout_ms: float | None = None,
    ) -> list[Outcome]:
        return await self._call(
            lambda left_ms: self.store.set(keys, buffers, parent=parent, timeout_ms=left_ms),
            lambda: [TIMED_OUT] * len(keys),
            timeout_ms,
        )

    async def explain(
        self, keys: Sequence[str], *, timeout_ms: float | None = None
    ) -> list[Outcome]:
        return await self._call(
            lambda left_ms: self.store.explain(keys, timeout_ms=left_ms),
            lambda: [TIMED_OUT] * len(keys),
            timeout_ms,
        )

    def prefetch(
        self,
        keys: Sequence[str],
        buffers: Buffers,
        *,
        priority: Priority = "prefetch",
        timeout_ms: float | None = None,
    ) -> AsyncPrefetch:
        """Begin to read pages in the background; returns at once. Its buffers are the store's
        until the returned object is `done`."""
        handle = self.store.prefetch(keys, buffers, priority=priority, timeout_ms=timeout_ms)
        return AsyncPrefetch(handle, self._waiters)

    async def clear(self) -> int:
        return await self._run(self.store.clear)

    async def close(self, timeout_ms: float = 5000) -> bool:
        if self._closed:
            return True
        closed = await self._run(lambda: self.store.close(timeout_ms))
        self._closed = True
        self._threads.shutdown(wait=False)
        self._waiters.shutdown(wait=False)
        return closed

    async def __aenter__(self) -> AsyncPageStore:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def _call(
        self, call: Callable[[float], T], late: Callable[[], T], timeout_ms: float | None
    ) -> T:
        """The time that a call waits for a thread counts; `late` answers where none is left."""
        limit_ms = self.store.options.timeout_ms if timeout_ms is None else timeout_ms
        deadline = Deadline.after_ms(limit_ms)

        def begin() -> T:
            left_ms = deadline.remaining_ms()
            return call(left_ms) if left_ms else late()

        return await self._run(begin)

    async def _run(self, call: Callable[[], T]) -> T:
        if self._closed:
            raise StorageClosed("the page store is closed")
        return await finished(self._threads.submit(call))


class AsyncPrefetch:
    """One prefetch under way. Left as a context it is cancelled and its buffers are free."""

    def __init__(self, handle: PrefetchHandle, threads: ThreadPoolExecutor) -> None:
        self._handle = handle
        self._threads = threads

    @property
    def progress(self) -> int:
        """Pages from the start that are ready, without a gap."""
        return self._handle.progress

    @property
    def done(self) -> bool:
        """Nothing of it is running or will run: the buffers are the caller's again."""
        return self._handle.done

    def cancel(self) -> None:
        """Begin no further chunk. Returns at once; `wait` says when the buffers are free."""
        self._handle.cancel()

    async def wait(self, timeout_ms: float | None = None) -> list[Outcome] | None:
        """The outcomes once done; None if it is still under way after `timeout_ms`. Cancelling
        this only ends the waiting."""
        if self._handle.done:
            return self._handle.wait()
        return await asyncio.wrap_future(self._threads.submit(self._handle.wait, timeout_ms))

    async def __aenter__(self) -> AsyncPrefetch:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.cancel()
        await finished(self._threads.submit(self._handle.wait))


async def finished(call: Future[T]) -> T:
    """The result of a call on another thread. If this is cancelled and a thread has begun the
    call, the cancellation takes effect when the call has returned."""
    done = asyncio.wrap_future(call)
    cancelled: asyncio.CancelledError | None = None
    while not done.done():
        try:
            await asyncio.wait([done])
        except asyncio.CancelledError as error:
            cancelled = error
            call.cancel()  # has an effect only as long as no thread has begun
    if cancelled is None:
        return done.result()
    if not done.cancelled():
        done.exception()  # nobody else will look at it
    raise cancelled
