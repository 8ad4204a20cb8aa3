"""The service's loops and its operators' routes where namespaces lie on several shards."""

from __future__ import annotations

import asyncio
import itertools
import json
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from hicache_backends.errors import RegistryUnavailable
from kvmanager import keys
from kvmanager.control import history, leases
from kvmanager.flow import Flow, T
from kvmanager.reports import Hot
from kvmanager.service.access import Access
from kvmanager.service.backing import Backing
from kvmanager.service.control import census
from kvmanager.service.control.base import Control
from kvmanager.service.loops.history import Sampling
from kvmanager.service.loops.loop import Worker
from kvmanager.service.loops.popularity import Ranking
from kvmanager.service.loops.settling import Settling
from kvmanager.service.loops.sweeping import Sweeping
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.deployments import ClusterDeployment, await_cluster
from tests.kvmanager.http_service import Service
from tests.kvmanager.loop_steps import run_step
from tests.kvmanager.members import Cluster, digests, eventually
from tests.kvmanager.reporters import Redis, Reporter
from tests.kvmanager.servers import Server
from tests.kvmanager.test_cluster import WITHIN_S, listed, spread, tag_of

JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def shards() -> Iterator[ClusterDeployment]:
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        alone = ("--cluster-require-full-coverage", "no")
        made = ClusterDeployment(binary_of("valkey"), Path(directory), *alone, replicas=0)
        with made:
            yield made.start()


def test_settings_quotas_sweeps_and_forgetting_reach_every_shard(
    shards: ClusterDeployment,
) -> None:
    service = Service(shards.url, "--no-loops").start()
    try:
        spaces = list(spread(shards).values())
        assert len(spaces) == len(shards.servers)
        with Cluster(shards.url) as cluster:
            stores = [cluster.store(namespace=namespace) for namespace in spaces]
            for store in stores:
                store.settled()
                store.write(store.chain(digests(10)))
            asked = json.dumps({"quota_bytes": 3 * 4096, "mode": "read"}).encode()
            status, said = service.request("PUT", "/v1/tenants/default", asked, JSON)
            assert (status, json.loads(said)["quota_bytes"]) == (200, 3 * 4096)
            run_step(shards, Settling)
            eventually(lambda: all(s.orders[-1].mode == "read" for s in stores), WITHIN_S)
            eventually(lambda: all(s.orders[-1].limit_bytes == 4096 for s in stores), WITHIN_S)
            rows = json.loads(service.get("/v1/processes")[1])["processes"]
            assert len(rows) == len(stores)
            assert listed(shards) == {tag_of(namespace) for namespace in spaces}
        run_step(shards, lambda worker: Sweeping(worker, -1000, -1000, -1000))
        assert listed(shards) == set()
        left = set()
        for server in shards.servers:
            with server.client() as client:
                left |= {key[:1] for key in client.scan_iter(count=1000)}
        assert left <= {b"a", b"u", b"w", b"l"}
    finally:
        service.stop()


@pytest.mark.parametrize("listing", [True, False])
def test_a_shard_that_is_down_stops_no_loop_for_the_others(
    shards: ClusterDeployment, monkeypatch: pytest.MonkeyPatch, *, listing: bool
) -> None:
    """`listing`: it is the one that has the list of all namespaces."""
    monkeypatch.setattr(census, "_REST", 0)
    for server in shards.servers:
        with server.client() as client:
            client.flushall()
    lists = shards.master(keys.TAGS)
    reporters = _one_of_each(shards)
    down = next(home for home in reporters if (home is lists) is listing)
    up = {home: one for home, one in reporters.items() if home is not down}
    asyncio.run(_without(shards, down, reporters, up))
    down.start()
    await_cluster(down)


async def _without(
    shards: ClusterDeployment,
    down: Server,
    reporters: dict[Server, Reporter],
    up: dict[Server, Reporter],
) -> None:
    backing = Backing(shards.url)
    await backing.open()
    try:
        await _step_without(Worker(Control(backing, Access())), down, reporters, up)
    finally:
        await backing.close()
    for home, one in up.items():
        tenant = keys.tenant_tag(one.namespace.tenant)
        with home.client() as client:
            assert client.hget(b"x" + one.tag, one.member.store) == b"%d" % (1 << 30)
            assert client.xlen(history.keys_of(tenant)[0]) == 1
            assert client.zcard(b"z" + tenant) == 1
            # sweeps wait for the list of all
            assert client.hlen(b"y" + one.tag) == (1 if down is shards.master(keys.TAGS) else 0)


async def _step_without(
    worker: Worker, down: Server, reporters: dict[Server, Reporter], up: dict[Server, Reporter]
) -> None:
    loops = [make(worker) for make in (Settling, Sampling, Ranking, Sweeping)]
    for loop in loops:
        await loop.step()
    down.kill()
    worker.control.census._read_s = float("-inf")  # it looks anew
    for home, one in up.items():
        tenant = keys.tenant_tag(one.namespace.tenant)
        tasks = [leases.task_key(one.tag, b"settle"), leases.sweep_key(one.tag)]
        with home.client() as client:
            for key in (*history.keys_of(tenant), b"z" + tenant, *tasks):
                client.delete(key)
            client.hset(b"u" + tenant, "quota_bytes", 1 << 30)
            client.hset(b"y" + one.tag, b"p" * 16, 1)  # a pin that has ended
        one.report({"get.pages": 1}, hot=(Hot(b"d" * 16, 1, 1),))
    for loop in loops:
        with suppress(RegistryUnavailable):
            await loop.step()
    assert worker.control.backing.impaired
    assert not worker.control.backing.down
    seen = await worker.control.census.read(worker.run, 0)
    assert seen.looks.keys() == {one.namespace.tenant for one in up.values()}
    assert seen.left_out == 1
    tenants = [one.namespace.tenant for one in reporters.values()]
    views = await census.views(worker.run, seen, tenants, 60)
    assert len(views) == len(up)


class Everywhere(Redis):
    """Carries flows out on the shards of their keys, beside an event loop."""

    def __init__(self, shards: ClusterDeployment) -> None:
        super().__init__(shards.servers[0].url)
        self._url = shards.url

    def run(self, flow: Flow[T]) -> T:
        async def once() -> T:
            backing = Backing(self._url)
            await backing.open()
            try:
                return await backing.run(flow, b"", 5000)
            finally:
                await backing.close()

        with ThreadPoolExecutor(1) as pool:
            return pool.submit(lambda: asyncio.run(once())).result()


def _one_of_each(shards: ClusterDeployment) -> dict[Server, Reporter]:
    """A process on each master, of a tenant whose own keys lie there as well."""
    redis = Everywhere(shards)
    found: dict[Server, Reporter] = {}
    for n in itertools.count():
        one = Reporter(redis, tenant=f"tenant {n}")
        home = shards.master(one.tag)
        if home not in found and home is shards.master(keys.tenant_tag(one.namespace.tenant)):
            found[home] = one
        if len(found) == len(shards.servers):
            break
    for one in found.values():
        one.beat()
        one.report({"get.pages": 1}, hot=(Hot(b"d" * 16, 1, 1),))
    return found
