"""What the service does by itself, and that two of them never do it twice."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from hicache_backends.errors import RegistryError
from hicache_backends.outcomes import Reason
from kvmanager import keys
from kvmanager.connection import Pool
from kvmanager.control import leases
from kvmanager.control.leases import LeaseLost
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.http.endpoint import HttpEndpoint
from kvmanager.options import RegistryOptions
from kvmanager.service.access import Access
from kvmanager.service.backing import Backing
from kvmanager.service.control.base import Control
from kvmanager.service.loops.loop import Loop, Worker
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import REPOSITORY, Service
from tests.kvmanager.loop_steps import TAG
from tests.kvmanager.members import Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]

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
            assert time.monotonic() - began < 4
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
