"""Masters change, planned or killed, under Sentinels and in a Cluster; real servers on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest
import redis

from hicache_backends.errors import RegistryError
from hicache_backends.storage import ROOT, PageEntry
from kvmanager import keys
from kvmanager.aio import AsyncRegistry
from kvmanager.model import State
from kvmanager.options import RegistryOptions
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.deployments import (
    SERVICE,
    ClusterDeployment,
    Deployment,
    SentinelDeployment,
    await_link,
)
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server

OPTIONS = RegistryOptions(timeout_ms=500, connect_timeout_ms=500, heartbeat_ms=200, ttl_ms=2000)
TAG = keys.tag(NAMESPACE.fingerprint)
WITHIN_S = 30
MOST_P99_MS = 50


@pytest.fixture(
    scope="module",
    params=[
        (SentinelDeployment, "valkey"),
        (ClusterDeployment, "valkey"),
        (ClusterDeployment, "redis"),
    ],
    ids=["sentinel-valkey", "cluster-valkey", "cluster-redis"],
)
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    kind, server = request.param
    with (
        tempfile.TemporaryDirectory(prefix="kv") as directory,
        kind(binary_of(server), Path(directory)) as started,
    ):
        yield started.start()


@pytest.fixture(scope="module")
def service(deployment: Deployment) -> Iterator[Service]:
    """`kvmanager serve` over the same servers."""
    started = Service(deployment.url).start()
    yield started
    started.stop()


class Traffic:
    """Threads that look up and publish, each call paced as an engine's are; what each found is
    compared with what was published."""

    def __init__(self, stores: Sequence[Store]) -> None:
        self._stores = stores
        self._chains = {
            store: [digest for digest, entry in store.pages.items() if entry.parent == ROOT]
            for store in stores
        }
        self._known = {d: entry.location for store in stores for d, entry in store.pages.items()}
        self.took_ms: list[float] = []
        self.wrong: list[bytes] = []
        self.failures = self.answers = 0
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=work, args=(store,), daemon=True)
            for store in stores
            for work in (self._look_up, self._publish)
        ]

    def __enter__(self) -> Traffic:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join(10)
            assert not thread.is_alive()

    @property
    def p99_ms(self) -> float:
        return sorted(self.took_ms)[len(self.took_ms) * 99 // 100]

    def _look_up(self, store: Store) -> None:
        asked = list(self._known)[:32]
        while not self._ended.wait(0.003):
            with self._timed():
                found = store.registry.lookup(asked, [store.member.medium], soon(500), prefix=False)
                for digest, location in zip(asked, found.locations, strict=True):
                    if location and location != self._known[digest]:
                        self.wrong.append(digest)

    def _publish(self, store: Store) -> None:
        while not self._ended.wait(0.02):
            with self._timed():
                store.write([store.entry(digests(1)[0])])

    @contextlib.contextmanager
    def _timed(self) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
            self.answers += 1
        except RegistryError:
            self.failures += 1
        self.took_ms.append((time.monotonic() - began) * 1000)


def members(direct: Cluster, over_http: Cluster) -> list[Store]:
    """Two that reach Redis themselves and one that asks the service, all on one medium."""
    stores = [direct.store(options=OPTIONS) for _ in range(2)]
    stores.append(over_http.store(medium=direct.medium, options=OPTIONS))
    for store in stores:
        settled(store)
        store.write([store.entry(digest) for digest in digests(100)])
    return stores


def settled(store: Store) -> None:
    eventually(lambda: store.registry.state is State.UP, WITHIN_S)


def assert_all_known(stores: Sequence[Store], reader: Store) -> None:
    """Every page of every store is found where its store says."""

    def all_known() -> bool:
        try:
            return all(_is_known(store, reader) for store in stores)
        except RegistryError:
            return False

    eventually(all_known, WITHIN_S)


def _is_known(store: Store, reader: Store) -> bool:
    pages: list[PageEntry] = list(store.pages.values())
    asked = [entry.digest for entry in pages]
    found = reader.registry.lookup(asked, [store.member.medium], soon(), prefix=False)
    return found.locations == [entry.location for entry in pages]


def switch(deployment: Deployment) -> Server:
    """A planned change of the namespace's master, as for an upgrade; the new one."""
    before = deployment.master(TAG)
    if isinstance(deployment, SentinelDeployment):
        heir = deployment.replica_of(before)
        with redis.Redis(host="127.0.0.1", port=deployment.sentinel_ports[0]) as client:
            client.execute_command("SENTINEL FAILOVER", SERVICE)
        eventually(lambda: role(heir) == b"master", WITHIN_S)
        with before.client() as client:  # what Sentinels do 8 s later; until then there are two
            client.replicaof("127.0.0.1", heir.port)
            client.client_kill_filter(_type="normal", skipme=True)
    else:
        with deployment.replica_of(before).client() as client:
            client.execute_command("CLUSTER FAILOVER")
        eventually(lambda: deployment.master(TAG) is not before, WITHIN_S)
    await_link(before)
    return deployment.master(TAG)


def is_at(store: Store, master: Server) -> bool:
    return store.registry.driver.pool.shown.endswith(f" at 127.0.0.1:{master.port}")


def role(server: Server) -> bytes:
    with server.client() as client:
        said: bytes = client.role()[0]
        return said


def test_sessions_follow_a_planned_change_of_the_master(
    deployment: Deployment, service: Service
) -> None:
    with Cluster(deployment.url) as direct, Cluster(service.url) as over_http:
        stores = members(direct, over_http)

        async def found(registry: AsyncRegistry) -> int:
            asked = list(stores[0].pages)
            try:
                return (await registry.lookup(asked, [direct.medium], soon())).prefix
            except RegistryError:
                return -1

        async def scenario() -> Server:
            registry = AsyncRegistry(stores[1].registry)
            assert await found(registry) == len(stores[0].pages)
            master = await asyncio.to_thread(switch, deployment)
            give_up = time.monotonic() + WITHIN_S
            row = 0
            while row < 50:
                assert time.monotonic() < give_up, "asyncio's connections did not follow"
                row = row + 1 if await found(registry) == len(stores[0].pages) else 0
                await asyncio.sleep(0.005)
            await registry.close()
            return master

        master = asyncio.run(scenario())
        for store in stores[:2]:
            eventually(partial(is_at, store, master), WITHIN_S)
        for store in (stores[0], stores[2]):
            settled(store)
            assert_all_known(stores, store)


def test_a_killed_master_delays_no_call_and_loses_no_page(
    deployment: Deployment, service: Service
) -> None:
    with Cluster(deployment.url) as direct, Cluster(service.url) as over_http:
        stores = members(direct, over_http)
        master = deployment.master(TAG)
        heir = deployment.replica_of(master)
        with Traffic(stores) as traffic:
            # what comes from now on is never replicated: the new master will not know of it
            heir.freeze()
            with master.client() as client:
                client.client_kill_filter(_type="replica")
            for store in stores:
                store.write([store.entry(digest) for digest in digests(50)])
            master.kill()
            heir.thaw()
            eventually(lambda: traffic.failures > 100, WITHIN_S)
            answered = traffic.answers
            for store in stores:
                settled(store)
            eventually(lambda: traffic.answers > answered + 300, WITHIN_S)
        assert not traffic.wrong
        assert traffic.p99_ms < MOST_P99_MS
        assert max(traffic.took_ms) < OPTIONS.timeout_ms * 3
        for store in stores:
            settled(store)
            assert_all_known(stores, store)
            counters = store.registry.core.counters
            assert counters["replayed"] + counters["announced"] > 0
        assert deployment.master(TAG) is heir
        master.start()  # the next test finds as many servers as the first
        eventually(lambda: role(master) == b"slave", WITHIN_S)
        await_link(master)
        for store in stores:
            assert_all_known(stores, store)


def test_a_master_that_hangs_delays_few_calls(deployment: Deployment, service: Service) -> None:
    """Each session waits for it until its breaker opens, and for no longer."""
    with Cluster(deployment.url) as direct, Cluster(service.url) as over_http:
        stores = members(direct, over_http)
        master = deployment.master(TAG)
        heir = deployment.replica_of(master)
        with Traffic(stores) as traffic:
            master.freeze()
            eventually(lambda: traffic.failures > 500, WITHIN_S)
            eventually(lambda: role(heir) == b"master", WITHIN_S)
            for store in stores:
                settled(store)
        assert not traffic.wrong
        waited = sum(took_ms > MOST_P99_MS for took_ms in traffic.took_ms)
        until_open = len(stores) * (OPTIONS.breaker_failures + 1)
        assert waited <= until_open + len(traffic.took_ms) // 100
        assert max(traffic.took_ms) < OPTIONS.timeout_ms * 3
        master.thaw()  # what it says now counts no more
        assert_all_known(stores, stores[0])
        assert is_at(stores[0], heir)
        assert is_at(stores[1], heir)
