"""What the service's sweeps end: pins, orders, and namespaces that nobody uses."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from typing import cast

import pytest
import redis

from kvmanager import keys, resp
from kvmanager.connection import Pool
from kvmanager.control import leases
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.flow import Flow, T
from kvmanager.options import RegistryOptions
from kvmanager.service.loops.loop import LoopOptions, Worker
from kvmanager.service.loops.sweeping import Sweeping
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.loop_steps import TAG, run_step, sweep_all
from tests.kvmanager.members import Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]

PAGES = digests(5)
CALM = RegistryOptions(timeout_ms=2000, heartbeat_ms=60_000, ttl_ms=180_000)
"""One heartbeat, so that what the service does is all that happens."""


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    yield made
    made.pool.clear()


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


class Interrupted(Exception):
    """The service is killed there."""


class Interrupting:
    """Runs what a service would, and does something before the n-th command after a sweep."""

    options = LoopOptions()

    def __init__(self, driver: Driver, at: int, then: Callable[[], None]) -> None:
        self._driver = driver
        self._at = at
        self._then = then
        self.commands = 0

    async def run(self, flow: Flow[T], tag: bytes) -> T:
        if getattr(flow, "__qualname__", "") != "Sweep.step":
            if self.commands == self._at:
                self._then()
            self.commands += 1
        return self._driver.run(flow, soon())


def forget(driver: Driver, at: int, then: Callable[[], None]) -> int:
    """As if everything had been left a week ago; the number of commands after the sweep."""
    worker = Interrupting(driver, at, then)
    sweeping = Sweeping(cast("Worker", worker), -1000, -1000, -1000)
    driver.run(plain(b"DEL", leases.sweep_key(TAG)), soon())
    asyncio.run(sweeping.sweep(TAG))
    return worker.commands


def plain(*words: bytes) -> Flow[resp.Reply]:
    reply: resp.Reply = yield resp.command(*words)
    return reply


COMMANDS = 3


@pytest.mark.parametrize("at", range(COMMANDS + 1))
def test_a_process_that_comes_while_its_namespace_is_forgotten_stays_listed(
    server: Server, cluster: Cluster, driver: Driver, at: int
) -> None:
    cluster.store().registry.close()

    def join() -> None:
        late = cluster.store(options=CALM)
        late.settled()
        late.write(late.chain(PAGES))

    commands = forget(driver, at, join)
    if at == COMMANDS:
        assert commands == COMMANDS, "each of them is tried"
        join()
    with server.client() as client:
        assert client.smembers(keys.TAGS) == {TAG}
    assert cluster.stores[-1].lookup(PAGES).prefix == len(PAGES)


@pytest.mark.parametrize("at", range(COMMANDS))
def test_whoever_is_killed_while_forgetting_leaves_the_rest_to_the_next(
    server: Server, cluster: Cluster, driver: Driver, at: int
) -> None:
    cluster.store().registry.close()

    def kill() -> None:
        raise Interrupted

    with pytest.raises(Interrupted):
        forget(driver, at, kill)
    sweep_all(server)
    with server.client() as client:
        assert families(client) <= {b"w"}
        cluster.store(options=CALM).settled()
        assert client.smembers(keys.TAGS) == {TAG}


def test_nothing_of_a_namespace_being_forgotten_is_told_for_ever(
    server: Server, cluster: Cluster, driver: Driver
) -> None:
    """Neither that its members are new, nor that the list of all lacks it."""
    cluster.store().registry.close()
    stores: list[Store] = []
    forget(driver, 1, lambda: stores.append(cluster.store()))
    (store,) = stores
    store.settled()
    beats = len(store.orders)
    eventually(lambda: len(store.orders) > beats + 5)
    assert store.registry.stats()["rejoined"] == 0


def test_pins_and_orders_end(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    with server.client() as client:
        now = int(client.time()[0])
        pins = {b"p" * 16: now - 1, b"q" * 16: now + 60}
        client.hset(b"y" + TAG, mapping=pins)
        orders = {store.member.process: b"read 1", b"g" * 16: b"off 1", b"h" * 16: b"off %d" % now}
        client.hset(b"o" + TAG, mapping=orders)
        client.hset(b"n" + TAG, mapping={"looked": now - 30, "back": 1})
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
        assert time.monotonic() - began < 20
