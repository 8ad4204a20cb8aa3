"""Listeners together: what one costs the others, and the server."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import ExitStack
from typing import Any

import pytest

from hicache_backends.errors import RegistryUnavailable
from kvmanager import keys
from kvmanager.control.snapshot import Snapshot
from kvmanager.flow import Flow
from kvmanager.service import walks
from kvmanager.service.backing import Backing
from kvmanager.service.codec import Refusal
from kvmanager.service.feeds import MAX_LISTENERS, Feeds
from kvmanager.service.walks import Missed, Seat, Slow, Walks
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.members import NAMESPACE, Cluster, digests
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]

TAG = keys.tag(NAMESPACE.fingerprint)
PAGES = 20_000


class Redis:
    """Carries the flows of walks out."""

    def __init__(self, server: Server) -> None:
        self._backing = Backing(server.url)
        self.fails = 0

    async def run(self, flow: Flow[Any], tag: bytes) -> Any:
        if self.fails:
            self.fails -= 1
            raise RegistryUnavailable("a failover")
        return await self._backing.run(flow, tag, 5000)

    async def close(self) -> None:
        await self._backing.close()

    def walks(self) -> Walks:
        return Walks(self.run, TAG, asyncio.Lock())


@pytest.fixture
async def redis(server: Server) -> AsyncIterator[Redis]:
    """Of a namespace with some pages."""
    with Cluster(server.url) as cluster:
        store = cluster.store()
        pages = store.chain(digests(PAGES))
        for start in range(0, PAGES, 1000):
            store.write(pages[start : start + 1000])
        made = Redis(server)
        yield made
        await made.close()


async def taken(seat: Seat, stirred: asyncio.Event) -> bytes:
    """All of a walk."""
    said = b""
    while True:
        ended = seat.ended
        part = seat.take()
        said += part
        if ended and not part:
            return said
        if not part:
            stirred.clear()
            await asyncio.wait_for(stirred.wait(), 20)


async def board(walking: Walks) -> bytes:
    stirred = asyncio.Event()
    return await taken(walking.board(stirred), stirred)


def steps(server: Server) -> int:
    """Buckets that were looked at."""
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_hlen", {}).get("calls", 0))


async def test_all_who_wait_share_a_walk_and_who_comes_later_the_next(
    server: Server, redis: Redis
) -> None:
    walking = redis.walks()
    one = await board(walking)
    assert one.count(b"event: snapshot") == 1
    before = steps(server)
    await board(walking)
    each = steps(server) - before
    first = [asyncio.create_task(board(walking)) for _ in range(10)]
    await asyncio.sleep(0.05)
    later = [asyncio.create_task(board(walking)) for _ in range(10)]
    said = await asyncio.gather(*first, *later)
    assert {len(each) for each in said} == {len(one)}
    assert steps(server) - before <= 3.5 * each


async def test_media_that_hold_little_are_read_in_few_steps(redis: Redis, server: Server) -> None:
    with Cluster(server.url) as cluster:
        for _ in range(20):
            store = cluster.store(medium=os.urandom(16))
            store.write(store.chain(digests(10)))
        snapshot, found, steps = Snapshot(TAG), 0, 0
        await redis.run(snapshot.begin(), TAG)
        while not snapshot.done:
            found += len((await redis.run(snapshot.step(), TAG)).pages)
            steps += 1
    assert found == PAGES + 20 * 10
    assert steps <= 20 * 8 + 128


async def test_the_server_rests_as_long_as_a_step_took(server: Server, redis: Redis) -> None:
    several = [redis.walks() for _ in range(4)]
    gate = several[0]._gate
    for walking in several:
        walking._gate = gate  # as those of one service
    with server.client() as client:
        client.config_resetstat()
        began = asyncio.get_running_loop().time()
        await asyncio.gather(*(board(walking) for walking in several))
        took_s = asyncio.get_running_loop().time() - began
        used_s = client.info("commandstats")["cmdstat_evalsha"]["usec"] / 1e6
    assert used_s < took_s / 2


async def test_a_walk_goes_on_after_a_failover(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "RETRY_S", 0.01)
    one = await board(redis.walks())
    redis.fails = 3
    assert len(await board(redis.walks())) == len(one)


async def test_who_takes_nothing_is_left_behind_and_holds_nobody_up_for_long(
    redis: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(walks, "MAX_AHEAD_BYTES", 50_000)
    monkeypatch.setattr(walks, "PATIENCE_S", 0.1)
    walking = redis.walks()
    deaf = walking.board(asyncio.Event())
    gone = walking.board(asyncio.Event())
    gone.leave()
    assert (await board(walking)).count(b"event: pages") > 5
    with pytest.raises(Slow):
        deaf.take()


async def test_a_namespace_that_is_lost_under_a_walk_is_missed(
    server: Server, redis: Redis
) -> None:
    walking, stirred = redis.walks(), asyncio.Event()
    seat = walking.board(stirred)
    await stirred.wait()
    with server.client() as client:
        while not seat.ended:  # its member brings it back with every heartbeat
            client.delete(b"n" + TAG)
            await asyncio.sleep(0)
    with pytest.raises(Missed):
        await taken(seat, stirred)


async def test_those_of_one_tenant_leave_places_to_others(server: Server) -> None:
    redis = Redis(server)
    feeds = Feeds(redis.run)
    with ExitStack() as held:
        counts = []
        for tenant in ("a", "b", "c"):
            counts.append(0)
            while listens(feeds, tenant, held):
                counts[-1] += 1
        assert counts == [MAX_LISTENERS // 2, MAX_LISTENERS // 4, MAX_LISTENERS // 8]
    assert feeds.listeners == 0
    feeds.close()
    await redis.close()


def listens(feeds: Feeds, tenant: str, held: ExitStack) -> bool:
    """Whether one more of a tenant may."""
    try:
        held.enter_context(feeds.feed(os.urandom(9), frozenset({tenant})))
    except Refusal as refusal:
        return refusal.status != 429
    return True
