"""What nobody uses any more goes, in small steps."""

from __future__ import annotations

import os
from collections import Counter

import pytest
import redis

from hicache_backends.deadline import Deadline
from kvmanager import keys, upkeep
from kvmanager.connection import Pool
from kvmanager.control.sweep import Sweep
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.options import RegistryOptions
from tests.kvmanager.members import NAMESPACE, Cluster, digests, eventually, soon
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)


def sweep(server: Server, **limits: int) -> Counter[str]:
    """A whole pass, by a process that owns no store."""
    driver = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    with server.client() as client:
        client.delete(b"w" + TAG)
    work = Sweep(TAG, **limits)
    while driver.run(work.step(), Deadline.after_ms(1000)):
        pass
    driver.pool.clear()
    return Counter(work.counters)


def page_keys(client: redis.Redis) -> list[bytes]:
    return [key for key in client.scan_iter(count=1000) if key.startswith(b"p")]


def test_expired_claims_go_and_live_ones_stay(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    gone, live = digests(150), digests(30)
    store.registry.claim(live, soon(60_000))
    with server.client() as client:
        (claims,) = [key for key in client.scan_iter() if key.startswith(b"c")]
        client.hset(claims, mapping=dict.fromkeys(gone, b"8 bytes!1"))
        assert sweep(server)["claims"] == 150
        assert client.hlen(claims) == 30 + 1


def test_all_claims_vanish_by_themselves_after_the_last_one(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store()
    store.registry.claim(digests(30), soon(1500))
    with server.client() as client:
        (claims,) = [key for key in client.scan_iter() if key.startswith(b"c")]
        assert 0 < client.pttl(claims) <= 1500 + 2000


def test_the_pages_of_an_old_epoch_are_unlinked(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    store.write(store.chain(digests(9000)))
    with server.client() as client:
        before = len(page_keys(client))
        assert before > 500
        store.registry.clear_namespace(soon())
        store.settled()
        kept = store.chain(digests(10))
        store.write(kept)
        assert sweep(server)["keys"] >= before
        assert len(page_keys(client)) <= 10
    assert store.lookup([entry.digest for entry in kept]).prefix == 10


def test_a_private_medium_goes_with_its_last_process_and_a_shared_one_stays(
    server: Server, cluster: Cluster
) -> None:
    with server.client() as client:
        private = cluster.store(medium=os.urandom(16), shared=False)
        shared = cluster.store(medium=os.urandom(16))
        private.write(private.chain(digests(500)))
        shared.write(shared.chain(digests(5)))
        for store in (private, shared):
            store.registry.close()
        private_bytes = sum(client.memory_usage(key) or 0 for key in page_keys(client))
        assert private_bytes > 500 * 60
        swept = sweep(server, private_ms=-1000)
        assert swept["stores"] == 1
        assert 1 <= len(page_keys(client)) <= 5
        sweep(server, private_ms=-1000, shared_ms=-1000)
        assert page_keys(client) == []
        left = {key[:1] for key in client.scan_iter()}
        assert left == {b"g", b"l", b"n", b"w"}


def test_a_medium_that_is_used_is_never_dropped(server: Server, cluster: Cluster) -> None:
    store = cluster.store(shared=False)
    entries = store.chain(digests(50))
    store.write(entries)
    store.settled()
    assert sweep(server, private_ms=1000)["stores"] == 0
    assert store.lookup([entry.digest for entry in entries]).prefix == 50


def test_a_process_that_comes_back_while_its_medium_is_dropped_waits_and_announces(
    server: Server, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    store = cluster.store(shared=False, start=False)
    entries = store.chain(digests(300))
    store.write(entries)
    with server.client() as client:
        alive = next(key for key in client.scan_iter() if key.startswith(b"r"))
        client.delete(alive, b"w" + TAG)
        work = Sweep(TAG, private_ms=-1000)
        driver = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
        while not client.hget(b"n" + TAG, "dropping"):
            driver.run(work.step(), soon())
        store.start()
        eventually(lambda: "being swept" in caplog.text)
        assert client.get(alive) is None
        while driver.run(work.step(), soon()):
            pass
        driver.pool.clear()
    store.settled()
    assert store.lookup([entry.digest for entry in entries]).prefix == 300


def test_one_process_at_a_time_sweeps(server: Server, cluster: Cluster) -> None:
    cluster.store()
    driver = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    with server.client() as client:
        client.delete(b"w" + TAG)
        first, second = Sweep(TAG), Sweep(TAG)
        assert driver.run(first.step(), soon())
        assert not driver.run(second.step(), soon())
    driver.pool.clear()


def test_every_namespace_is_listed(server: Server, cluster: Cluster) -> None:
    cluster.store()
    with server.client() as client:
        assert client.smembers(keys.TAGS) == {TAG}


def test_members_sweep_by_themselves(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "SWEEP_EVERY_S", 0.05)
    store = cluster.store()
    store.registry.claim(digests(1), soon(60_000))
    with server.client() as client:
        (claims,) = [key for key in client.scan_iter() if key.startswith(b"c")]
        client.hset(claims, mapping=dict.fromkeys(digests(50), b"8 bytes!1"))
        eventually(lambda: client.hlen(claims) == 1 + 1)
