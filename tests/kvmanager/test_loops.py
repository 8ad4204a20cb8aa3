"""What the service does by itself, and that two of them never do it twice."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends.errors import RegistryError
from hicache_backends.outcomes import Reason
from kvmanager import keys, leases, quotas, tenants
from kvmanager.connection import Pool
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.http_endpoint import HttpEndpoint
from kvmanager.leases import LeaseLost
from kvmanager.options import RegistryOptions
from kvmanager.service.access import Access
from kvmanager.service.backing import Backing
from kvmanager.service.control.base import Control
from kvmanager.service.loops.loop import Loop, LoopOptions, Task, Worker
from kvmanager.service.loops.settling import Settling
from kvmanager.service.loops.sweeping import Sweeping
from kvmanager.sweep import Sweep
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import REPOSITORY, Service
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]

TAG = keys.tag(NAMESPACE.fingerprint)
CALM = RegistryOptions(timeout_ms=2000, heartbeat_ms=500, ttl_ms=5000)
DEAD_CLAIM = b"8 bytes!1"
HOLDERS = (bytes(16), b"1" * 16)


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    yield made
    made.pool.clear()


@pytest.fixture
def start(server: Server) -> Iterator[Callable[..., Service]]:
    """Starts services that are ended after the test."""
    started: list[Service] = []

    def make(*options: str) -> Service:
        started.append(Service(server.url, *options).start())
        return started[-1]

    yield make
    for service in started:
        if service.process is not None:
            service.signal(signal.SIGCONT)
            service.stop()


def test_a_lease_has_one_holder_and_each_new_one_a_higher_fence(
    server: Server, driver: Driver
) -> None:
    key = leases.task_key(TAG, b"task")
    first = driver.run(leases.take(key, HOLDERS[0], 60_000), soon())
    assert first is not None
    assert driver.run(leases.take(key, HOLDERS[1], 60_000), soon()) is None
    assert driver.run(leases.take(key, HOLDERS[0], 60_000), soon()) == first
    driver.run(first.renew(90_000), soon())
    with server.client() as client:
        assert 60_000 < client.pttl(key) <= 90_000
    driver.run(first.release(), soon())
    second = driver.run(leases.take(key, HOLDERS[1], 60_000), soon())
    assert second is not None
    assert second.fence > first.fence
    with pytest.raises(LeaseLost):
        driver.run(first.renew(60_000), soon())
    driver.run(first.release(), soon())
    with pytest.raises(LeaseLost):
        driver.run(first.act("sweep_pins", (b"y" + TAG, b"n" + TAG), (b"0",)), soon())
    assert driver.run(leases.take(key, HOLDERS[0], 60_000), soon()) is None


def test_a_lease_of_a_frozen_holder_ends_by_the_servers_clock(
    server: Server, driver: Driver
) -> None:
    key = leases.sweep_key(TAG)
    assert driver.run(leases.take(key, HOLDERS[0], 30), soon()) is not None
    eventually(lambda: driver.run(leases.take(key, HOLDERS[1], 30), soon()) is not None)


def test_a_service_that_slept_through_its_lease_does_not_act(
    server: Server, start: Callable[..., Service]
) -> None:
    """It is frozen in the middle of a sweep, and thawed when another one has taken over, which is
    frozen then, so that whatever is done after that would be the first one's doing."""
    claims = b"c%b0.%b" % (TAG, keys.medium_id(b"m" * 16))
    with Cluster(server.url) as cluster, server.client() as client:
        cluster.store(medium=b"m" * 16, start=False)
        client.delete(leases.sweep_key(TAG))
        client.hset(claims, mapping=dict.fromkeys(digests(100_000), DEAD_CLAIM))
        first = start("--sweep-every", "0.2", "--settle-every", "60")
        eventually(lambda: client.exists(leases.sweep_key(TAG)) == 1, 20)
        first.signal(signal.SIGSTOP)
        left = client.hlen(claims)
        assert left > 0, "the sweep was over before it was frozen"
        frozen = client.get(leases.sweep_key(TAG))
        second = start("--sweep-every", "0.2", "--settle-every", "60")
        eventually(lambda: client.get(leases.sweep_key(TAG)) not in (None, frozen), 20)
        second.signal(signal.SIGSTOP)
        held = client.get(leases.sweep_key(TAG))
        assert held is not None
        client.pexpire(leases.sweep_key(TAG), 60_000)
        client.hset(claims, mapping=dict.fromkeys(digests(1000), DEAD_CLAIM))
        before = client.hlen(claims)
        client.config_resetstat()
        first.signal(signal.SIGCONT)
        eventually(lambda: client.info("commandstats").get("cmdstat_get", {}).get("calls", 0) >= 5)
        assert client.hlen(claims) == before
        assert client.get(leases.sweep_key(TAG)) == held
        client.delete(leases.sweep_key(TAG))
        eventually(lambda: client.hlen(claims) <= 1, 20)


def test_what_a_killed_process_left_goes_where_all_clients_use_http(
    server: Server, start: Callable[..., Service]
) -> None:
    """Its claims are hidden at their end and gone a sweep later, its pages on a shared medium stay
    readable; under load, and although a manager is killed as well."""
    services = [start("--sweep-every", "0.5") for _ in range(2)]
    url = ",".join(service.url for service in services)
    pages, claimed = digests(10), digests(200)
    with Cluster(url) as cluster, server.client() as client:
        other = cluster.store(options=CALM)
        arguments = [url, cluster.medium.hex(), b"".join(pages).hex(), b"".join(claimed).hex()]
        writer = subprocess.Popen(
            [sys.executable, "-m", "tests.kvmanager.http_writer", *arguments, "4000"],
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}"},
        )
        with writer, looking_up(other, pages) as failures:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"ready\n"
            # others hold claims, so that the key as a whole does not end with those
            other.registry.claim(digests(1), soon(60_000))
            (held,) = [key for key in client.scan_iter() if key.startswith(b"c")]
            assert client.hlen(held) == 200 + 1 + 1
            writer.kill()
            endpoint = HttpEndpoint.parse(url)
            services[endpoint.addresses.index(endpoint.first)].kill()  # the one that is used
            assert reason(other, claimed[0]) is Reason.BEING_WRITTEN
            eventually(lambda: reason(other, claimed[0]) is Reason.NEVER_WRITTEN)
            began = time.monotonic()
            eventually(lambda: client.hlen(held) == 1 + 1)
            assert time.monotonic() - began < 2
            gone = [key for key in client.scan_iter() if key.startswith(b"r")]
            assert len(gone) == 1, "the process is gone"
            assert other.lookup(pages).prefix == 10
        assert failures == []


@contextmanager
def looking_up(store: Store, pages: list[bytes]) -> Iterator[list[str]]:
    """Meanwhile pages are looked up without a pause; what went wrong, where they had been found."""
    failures: list[str] = []
    ended = threading.Event()

    def look_up() -> None:
        found = False
        while not ended.is_set():
            try:
                now = store.lookup(pages).prefix == len(pages)
            except RegistryError as error:
                failures.append(str(error))
                return
            if found and not now:
                failures.append("the pages are gone")
                return
            found = now
        if not found:
            failures.append("the pages were never found")

    threads = [threading.Thread(target=look_up) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        yield failures
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def reason(store: Store, digest: bytes) -> Reason | None:
    return store.lookup([digest]).reasons[0]


def run_step(server: Server, make: Callable[[Worker], Task], **options: float) -> None:
    async def once() -> None:
        backing = Backing(server.url)
        await backing.open()
        await make(Worker(Control(backing, Access()), LoopOptions(**options))).step()
        await backing.close()

    asyncio.run(once())


def sweep_all(server: Server) -> None:
    """As if everything had been left a week ago."""
    with server.client() as client:
        client.delete(leases.sweep_key(TAG))
    run_step(server, lambda worker: Sweeping(worker, -1000, -1000, -1000))


def families(client: redis.Redis) -> set[bytes]:
    return {key[:1] for key in client.scan_iter(count=1000)}


def test_a_namespace_that_nobody_uses_is_forgotten(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    store.write(store.chain(digests(50)))
    store.registry.claim(digests(5), soon(60_000))
    with server.client() as client:
        client.hset(b"y" + TAG, os.urandom(16), b"99999999999")
        client.delete(leases.sweep_key(TAG))
        run_step(server, Sweeping)
        assert client.smembers(keys.TAGS) == {TAG}, "it is in use"
        assert store.lookup(list(store.pages)).prefix == 50
        store.registry.close()
        sweep_all(server)
        assert client.smembers(keys.TAGS) == set()
        assert families(client) == {b"w"}
        again = cluster.store()
        again.settled()
        assert client.smembers(keys.TAGS) == {TAG}


def test_what_was_cleared_stays_cleared_where_the_namespace_was_forgotten(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store()
    store.settled()
    epoch = store.registry.clear_namespace(soon())
    store.registry.close()
    sweep_all(server)
    with server.client() as client:
        assert families(client) == {b"n", b"w"}
        assert client.hget(b"n" + TAG, "cleared") == b"%d" % epoch


def test_a_process_that_comes_while_its_namespace_is_forgotten_stays_listed(
    server: Server, cluster: Cluster, driver: Driver
) -> None:
    store = cluster.store()
    store.registry.close()
    with server.client() as client:
        client.delete(leases.sweep_key(TAG))
        sweep = Sweep(TAG, HOLDERS[0], private_ms=-1000, shared_ms=-1000)
        while driver.run(sweep.step(), soon()):
            pass
        assert sweep.empty
        assert sweep.lease is not None
        own = (b"n" + TAG, b"s" + TAG, b"q" + TAG)
        assert driver.run(sweep.lease.act("forget", own, (b"1", b"-1000")), soon()) == 1
        late = cluster.store()
        eventually(lambda: len(late.orders) > 1)
        client.srem(keys.TAGS, TAG)  # as the next command of the service does
        eventually(lambda: client.sismember(keys.TAGS, TAG) == 1)
        assert driver.run(sweep.lease.act("forget", own, (b"2", b"-1000")), soon()) == 0
        sweep_all(server)
        late.settled()
        assert client.smembers(keys.TAGS) == {TAG}


def test_pins_and_orders_end(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    with server.client() as client:
        now = int(client.time()[0])
        pins = {b"p" * 16: now - 1, b"q" * 16: now + 60}
        client.hset(b"y" + TAG, mapping=pins)
        orders = {store.member.process: b"read 1", b"g" * 16: b"off 1", b"h" * 16: b"off %d" % now}
        client.hset(b"o" + TAG, mapping=orders)
        client.delete(leases.sweep_key(TAG))
        run_step(server, Sweeping)
        assert client.hkeys(b"y" + TAG) == [b"q" * 16]
        assert client.hget(b"n" + TAG, "pins") == b"1"
        assert set(client.hkeys(b"o" + TAG)) == {store.member.process, b"h" * 16}


def test_an_epoch_out_of_all_proportion_costs_a_sweep_nothing(
    server: Server, cluster: Cluster
) -> None:
    """A member brings back whatever epoch it has seen."""
    store = cluster.store()
    store.registry.close()
    with server.client() as client:
        client.hset(b"n" + TAG, "epoch", 1 << 52)
        client.delete(leases.sweep_key(TAG))
        began = time.monotonic()
        run_step(server, Sweeping)
        assert time.monotonic() - began < 2


@given(
    st.integers(0, 1 << 50),
    st.dictionaries(st.binary(min_size=2, max_size=2), st.integers(0, 1 << 44), max_size=20),
    st.integers(0, 1 << 50),
)
def test_shares_of_a_quota_keep_the_tenant_below_it(
    quota: int, kept: dict[bytes, int], left_behind: int
) -> None:
    usage = sum(kept.values()) + left_behind
    shares = quotas.limits(quota, usage, kept)
    assert shares.keys() == kept.keys()
    assert all(share >= 0 for share in shares.values())
    if usage <= quota:
        assert all(shares[store] >= used for store, used in kept.items())
    assert sum(shares.values()) + left_behind <= max(quota, usage) + len(kept)
    if not left_behind and kept:
        assert sum(shares.values()) <= quota + len(kept)


def test_settings_of_a_tenant_reach_the_processes_in_all_its_namespaces(
    server: Server, cluster: Cluster, driver: Driver
) -> None:
    other_pool = dataclasses.replace(NAMESPACE, pool="other")
    elsewhere = dataclasses.replace(NAMESPACE, tenant="theirs")
    stores = [cluster.store(), cluster.store(namespace=other_pool)]
    theirs = cluster.store(namespace=elsewhere)
    stores[0].write(stores[0].chain(digests(100)))
    set_for = tenants.Settings(60 * 4096, 5000, "read")
    driver.run(tenants.enlist("default"), soon())
    driver.run(tenants.write("default", set_for), soon())
    run_step(server, Settling)
    eventually(lambda: all(ordered(store) == ("read", 5000) for store in stores))
    eventually(lambda: limits(stores) == [60 * 4096, 0])
    eventually(lambda: bool(theirs.orders))
    assert ordered(theirs) == (None, None)
    driver.run(tenants.delete("default"), soon())
    driver.run(tenants.strike("default"), soon())
    run_step(server, Settling)
    # the lease is the first service's
    assert all(ordered(store) == ("read", 5000) for store in stores)
    with server.client() as client:
        for namespace in (NAMESPACE, other_pool):
            client.delete(leases.task_key(keys.tag(namespace.fingerprint), b"settle"))
    run_step(server, Settling)
    eventually(lambda: all(ordered(store) == (None, None) for store in stores))
    eventually(lambda: limits(stores) == [None, None])


def ordered(store: Store) -> tuple[str | None, int | None]:
    return store.orders[-1].mode, store.orders[-1].ttl_ms


def limits(stores: list[Store]) -> list[int | None]:
    return [store.orders[-1].limit_bytes for store in stores]


def test_a_task_that_fails_is_told_of_once_and_goes_on(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    class Failing:
        every_s = 0.01
        steps = 0

        async def step(self) -> None:
            self.steps += 1
            raise ValueError("no luck")

    async def some() -> int:
        backing = Backing(server.url)
        await backing.open()
        task = Failing()
        running = asyncio.create_task(Loop(task, Worker(Control(backing, Access()))).run())
        while task.steps < 3:
            await asyncio.sleep(0.01)
        running.cancel()
        await backing.close()
        return task.steps

    assert asyncio.run(some()) >= 3
    assert caplog.text.count("a task of the service went wrong") == 1


def test_a_service_without_loops_leaves_all_as_it_is(
    server: Server, start: Callable[..., Service]
) -> None:
    start("--no-loops", "--sweep-every", "0.1")
    with Cluster(server.url) as cluster, server.client() as client:
        cluster.store(start=False)
        time.sleep(0.5)
        assert client.exists(leases.sweep_key(TAG)) == 0
