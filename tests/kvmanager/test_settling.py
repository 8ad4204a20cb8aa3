"""What is set for a tenant reaches its processes, and its quota is shared among them."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmanager import keys
from kvmanager.connection import Pool
from kvmanager.control import census, leases, namespaces, quotas, tenants
from kvmanager.control.namespaces import describe, note
from kvmanager.control.quotas import Held
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.options import RegistryOptions
from kvmanager.service.loops.settling import Settling
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.loop_steps import run_step
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.reporters import Redis, Reporter
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    yield made
    made.pool.clear()


@given(
    st.integers(0, 1 << 50),
    st.dictionaries(
        st.binary(min_size=2, max_size=2),
        st.builds(
            Held,
            st.none() | st.integers(0, 1 << 44),
            st.integers(0, 1 << 44),
            st.none() | st.integers(0, 1 << 44),
        ),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 1 << 50),
)
def test_shares_are_the_whole_quota_and_no_more(
    quota: int, stores: dict[bytes, Held], usage: int
) -> None:
    shares = quotas.limits(quota, usage, stores)
    assert shares.keys() == stores.keys()
    assert all(share >= 0 for share in shares.values())
    assert abs(sum(shares.values()) - quota) <= 2 * len(stores)


@given(
    st.lists(
        st.tuples(st.integers(0, 1 << 40), st.integers(0, 1 << 40), st.integers(0, 1 << 40)),
        min_size=1,
        max_size=20,
    ),
    st.integers(0, 1 << 40),
)
def test_a_store_within_its_quota_drops_nothing_however_old_its_report_is(
    stores: list[tuple[int, int, int]], spare: int
) -> None:
    """Each: what it reported, what it wrote since, what it could have kept more."""
    present = [reported + since for reported, since, _ in stores]
    untold = sum(since for _, since, _ in stores)
    held = {
        bytes([n]): Held(reported, untold, reported + since + more)
        for n, (reported, since, more) in enumerate(stores)
    }
    quota = sum(one.limit or 0 for one in held.values()) + spare
    shares = quotas.limits(quota, sum(present), held)
    assert all(shares[bytes([n])] >= size for n, size in enumerate(present))


def test_a_store_that_the_registry_knows_to_keep_more_than_it_told_drops_nothing() -> None:
    assert quotas.limits(100, 100, {b"a": Held(20, 60, 80), b"b": Held(20, 0, 20)}) == {
        b"a": 80,
        b"b": 20,
    }
    assert quotas.limits(100, 100, {b"a": Held(100), b"b": Held(100)}) == {b"a": 50, b"b": 50}


def test_what_vanished_stores_left_takes_nothing_from_live_ones() -> None:
    assert quotas.limits(100, 1000, {b"a": Held(50, 950, 100)}) == {b"a": 100}
    assert quotas.limits(100, 1000, {b"fresh": Held(None, 900)}) == {b"fresh": 100}
    both = quotas.limits(100, 1000, {b"a": Held(50, 950, 100), b"fresh": Held(None, 950)})
    assert both == {b"a": 50, b"fresh": 50}


def test_settings_of_a_tenant_reach_the_processes_in_all_its_namespaces(
    server: Server, cluster: Cluster, driver: Driver
) -> None:
    other_pool = dataclasses.replace(NAMESPACE, pool="other")
    elsewhere = dataclasses.replace(NAMESPACE, tenant="theirs")
    stores = [cluster.store(), cluster.store(namespace=other_pool)]
    theirs = cluster.store(namespace=elsewhere)
    stores[0].write(stores[0].chain(digests(100)))
    set_for = tenants.Settings(60 * 4096, 5000, "read")
    driver.run(tenants.write("default", set_for), soon())  # and listed nowhere
    run_step(server, Settling)
    eventually(lambda: all(ordered(store) == ("read", 5000) for store in stores))
    eventually(lambda: limits(stores) == [45 * 4096, 15 * 4096])
    eventually(lambda: bool(theirs.orders))
    assert ordered(theirs) == (None, None)
    driver.run(tenants.delete("default"), soon())
    run_step(server, Settling)
    # the lease is the first service's
    assert all(ordered(store) == ("read", 5000) for store in stores)
    with server.client() as client:
        for namespace in (NAMESPACE, other_pool):
            client.delete(leases.task_key(keys.tag(namespace.fingerprint), b"settle"))
    run_step(server, Settling)
    eventually(lambda: all(ordered(store) == (None, None) for store in stores))
    eventually(lambda: limits(stores) == [None, None])


def test_a_live_store_has_the_quota_however_much_vanished_ones_left(
    server: Server, driver: Driver
) -> None:
    with Redis(server.url) as redis:
        medium = os.urandom(16)
        gone, live = (Reporter(redis, medium=medium) for _ in range(2))
        page = live.namespace.page_bytes
        for store in (gone, live):
            store.beat()
        live.report({}, pages=50)
        with server.client() as client:
            client.hset(b"n" + live.tag, b"k:0." + keys.medium_id(medium), 150)
            client.delete(b"r" + gone.tag + gone.member.process)
        driver.run(tenants.write("default", tenants.Settings(100 * page)), soon())
        for _ in range(4):
            settled(server, live.tag)
            assert ordered_bytes(server, live) == 100 * page
        record = driver.run(describe(live.tag), soon())
        assert record is not None
        look = driver.run(census.look(record), soon())
        assert quotas.orphan_bytes(record, look.stores, look.records.values()) == 100 * page


def test_a_tenant_whose_namespace_is_broken_stops_no_other(server: Server, driver: Driver) -> None:
    with Redis(server.url) as redis:
        broken, twin, other = (
            Reporter(redis, tenant=tenant, model=model)
            for tenant, model in (("broken", "one"), ("broken", "two"), ("other", "one"))
        )
        for store in (broken, twin, other):
            store.beat()
            driver.run(tenants.write(store.namespace.tenant, tenants.Settings(1 << 30)), soon())
        with server.client() as client:
            client.delete(b"r" + broken.tag + broken.member.process)
            client.lpush(b"r" + broken.tag + broken.member.process, "no string")
        run_step(server, Settling)
        assert ordered_bytes(server, other) == 1 << 30
        assert ordered_bytes(server, twin) == 1 << 30
        assert ordered_bytes(server, broken) is None


@pytest.mark.parametrize("family", ["m", "n", "s", "x", "y"])
def test_a_namespace_that_cannot_be_read_is_left_out_and_told_once(
    server: Server, driver: Driver, caplog: pytest.LogCaptureFixture, family: str
) -> None:
    with Redis(server.url) as redis:
        store = Reporter(redis)
        store.beat()
        with server.client() as client:
            if family == "m":
                client.hset(b"n" + store.tag, b"m:" + keys.medium_id(store.member.medium), b"\xc1")
            else:
                client.delete(family.encode() + store.tag)
                client.set(family.encode() + store.tag, "no hash")
        note.cache_clear()
        with caplog.at_level(logging.WARNING):
            for _ in range(3):
                assert driver.run(describe(store.tag), soon()) is None
        assert len(caplog.records) == 1
        assert namespaces.id_of(store.tag) in caplog.text


def settled(server: Server, tag: bytes) -> None:
    with server.client() as client:
        client.delete(leases.task_key(tag, b"settle"))
    run_step(server, Settling)


def ordered_bytes(server: Server, store: Reporter) -> int | None:
    with server.client() as client:
        kept = client.hget(b"x" + store.tag, store.member.store)
        return None if kept is None else int(kept)


def ordered(store: Store) -> tuple[str | None, int | None]:
    return store.orders[-1].mode, store.orders[-1].ttl_ms


def limits(stores: list[Store]) -> list[int | None]:
    return [store.orders[-1].limit_bytes for store in stores]
