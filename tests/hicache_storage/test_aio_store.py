"""The page store on asyncio: same answers, a free event loop, honest cancellation."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Sequence

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import InvalidBuffer, StorageClosed
from hicache_backends.identity import Namespace
from hicache_backends.memory import MemoryStorage
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.pages import Pages
from hicache_storage.aio_store import AsyncPageStore
from hicache_storage.options import StoreOptions
from hicache_storage.page_store import PageStore

PAGE = 512
NAMESPACE = Namespace("m", "r", "bf16", "page_first", 64, PAGE)
OPTIONS = StoreOptions(batch_get_size=4, timeout_ms=10_000)


def hashes(n: int) -> list[str]:
    return [hashlib.sha256(b"%d" % i).hexdigest() for i in range(n)]


def canaries(keys: Sequence[str]) -> list[bytes]:
    return [hashlib.shake_128(key.encode()).digest(PAGE) for key in keys]


def blank(n: int) -> list[bytearray]:
    return [bytearray(b"\xa5" * PAGE) for _ in range(n)]


class SlowStorage(MemoryStorage):
    """Reads only while the gate is open."""

    def __init__(self) -> None:
        super().__init__(NAMESPACE)
        self.gate = threading.Event()
        self.gate.set()
        self.reading = threading.Event()
        self.reads = 0

    def get(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        locations: Sequence[bytes] | None = None,
    ) -> list[Outcome]:
        self.reads += 1
        self.reading.set()
        assert self.gate.wait(10)
        return super().get(digests, pages, deadline, locations)

    async def being_read(self) -> None:
        await asyncio.to_thread(self.reading.wait, 10)


@pytest.fixture
def storage() -> SlowStorage:
    return SlowStorage()


@pytest.fixture
async def store(storage: SlowStorage) -> AsyncIterator[AsyncPageStore]:
    async with AsyncPageStore(PageStore(storage, NAMESPACE, options=OPTIONS), workers=2) as store:
        yield store
        storage.gate.set()


async def test_answers_are_those_of_the_page_store(store: AsyncPageStore) -> None:
    keys = hashes(9)
    assert all(await store.set(keys[:5], canaries(keys[:5]), parent=None))
    assert await store.exists(keys) == 5
    buffers = blank(9)
    outcomes = await store.get(keys, buffers)
    assert [bool(o) for o in outcomes] == [True] * 5 + [False] * 4
    assert buffers[:5] == canaries(keys[:5])
    assert [o.reason for o in await store.explain(keys[4:6])] == [None, Reason.NEVER_WRITTEN]
    assert await store.clear() == 5
    assert await store.exists(keys) == 0


async def test_mistakes_are_raised(store: AsyncPageStore) -> None:
    with pytest.raises(InvalidBuffer):
        await store.get(hashes(1), [b"read only"])


async def test_many_tasks_at_once_each_get_their_own_pages(store: AsyncPageStore) -> None:
    keys = hashes(64)

    async def round_trip(key: str) -> bool:
        await store.set([key], canaries([key]))
        buffers = blank(1)
        return all(await store.get([key], buffers)) and buffers == canaries([key])

    assert all(await asyncio.gather(*map(round_trip, keys)))


async def test_event_loop_runs_while_a_read_hangs(
    store: AsyncPageStore, storage: SlowStorage
) -> None:
    keys = hashes(1)
    await store.set(keys, canaries(keys))
    storage.gate.clear()
    read = asyncio.create_task(store.get(keys, blank(1)))
    await storage.being_read()
    assert await store.exists(keys) == 1
    assert not read.done()
    storage.gate.set()
    assert all(await read)


async def test_cancelled_read_that_is_under_way_ends_when_its_buffers_are_free(
    store: AsyncPageStore, storage: SlowStorage
) -> None:
    keys, buffers = hashes(1), blank(1)
    await store.set(keys, canaries(keys))
    storage.gate.clear()
    read = asyncio.create_task(store.get(keys, buffers))
    await storage.being_read()
    for _ in range(2):  # however often it is cancelled
        read.cancel()
        await asyncio.wait([read], timeout=0.02)
        assert not read.done()
    storage.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await read
    assert buffers == canaries(keys)


async def test_failure_of_a_cancelled_read_is_not_reported_as_lost(
    store: AsyncPageStore, storage: SlowStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: lost.append(context))
    storage.gate.clear()
    read = asyncio.create_task(store.get(hashes(1), blank(1)))
    await storage.being_read()
    monkeypatch.setattr(MemoryStorage, "get", lambda *_: 1 / 0)
    read.cancel()
    storage.gate.set()
    with pytest.raises(asyncio.CancelledError):
        await read
    del read
    await asyncio.sleep(0)
    assert lost == []


async def test_call_that_waits_for_a_thread_is_cancelled_at_once(
    store: AsyncPageStore, storage: SlowStorage
) -> None:
    keys = hashes(1)
    storage.gate.clear()
    busy = [asyncio.create_task(store.get(keys, blank(1))) for _ in range(2)]
    await storage.being_read()
    waiting = asyncio.create_task(store.get(keys, blank(1)))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert not any(task.done() for task in busy)
    storage.gate.set()
    await asyncio.gather(*busy)
    assert storage.reads == 2


async def test_waiting_for_a_thread_counts_against_the_deadline(
    store: AsyncPageStore, storage: SlowStorage
) -> None:
    keys = hashes(3)
    storage.gate.clear()
    busy = [asyncio.create_task(store.get(keys, blank(3))) for _ in range(2)]
    await storage.being_read()
    late = asyncio.create_task(store.get(keys, blank(3), timeout_ms=1))
    late_exists = asyncio.create_task(store.exists(keys, timeout_ms=1))
    await asyncio.to_thread(time.sleep, 0.005)
    storage.gate.set()
    assert [o.reason for o in await late] == [Reason.TIMEOUT] * 3
    assert await late_exists == 0
    await asyncio.gather(*busy)
    assert storage.reads == 2


async def test_prefetch_reports_a_contiguous_prefix(
    store: AsyncPageStore, storage: SlowStorage
) -> None:
    keys, buffers = hashes(12), blank(12)
    await store.set(keys[:6], canaries(keys[:6]))
    storage.gate.clear()
    prefetch = store.prefetch(keys, buffers)
    await storage.being_read()
    assert await prefetch.wait(1) is None
    assert (prefetch.progress, prefetch.done) == (0, False)
    storage.gate.set()
    outcomes = await prefetch.wait()
    assert outcomes is not None
    assert prefetch.done
    assert prefetch.progress == 6
    assert [bool(o) for o in outcomes] == [True] * 6 + [False] * 6
    assert buffers[:6] == canaries(keys[:6])
    assert await prefetch.wait() == outcomes


async def test_prefetch_left_as_a_context_has_given_its_buffers_back(
    store: AsyncPageStore, storage: SlowStorage
) -> None:
    keys = hashes(64)
    await store.set(keys, canaries(keys))
    storage.gate.clear()

    async def leave() -> None:
        async with store.prefetch(keys, blank(64)) as prefetch:
            assert not prefetch.done
            await storage.being_read()
        assert prefetch.done

    leaving = asyncio.create_task(leave())
    await storage.being_read()
    await asyncio.wait([leaving], timeout=0.02)
    assert not leaving.done()
    storage.gate.set()
    await leaving
    assert storage.reads < 64 // OPTIONS.batch_get_size


async def test_closed_store_says_so(store: AsyncPageStore) -> None:
    assert await store.close()
    assert await store.close()
    with pytest.raises(StorageClosed):
        await store.exists(hashes(1))
    with pytest.raises(StorageClosed):
        store.prefetch(hashes(1), blank(1))
