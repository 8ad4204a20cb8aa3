"""What the service's sweeps end: pins, orders, and namespaces that nobody uses."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
import redis

from kvmanager import keys, leases
from kvmanager.connection import Pool
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.options import RegistryOptions
from kvmanager.service.loops.sweeping import Sweeping
from kvmanager.sweep import Sweep
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.loop_steps import TAG, run_step, sweep_all
from tests.kvmanager.members import Cluster, digests, eventually, soon
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]

HOLDER = bytes(16)


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


def test_a_process_that_comes_while_its_namespace_is_forgotten_stays_listed(
    server: Server, cluster: Cluster, driver: Driver
) -> None:
    store = cluster.store()
    store.registry.close()
    with server.client() as client:
        client.delete(leases.sweep_key(TAG))
        sweep = Sweep(TAG, HOLDER, private_ms=-1000, shared_ms=-1000)
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
