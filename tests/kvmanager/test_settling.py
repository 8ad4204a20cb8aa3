"""What is set for a tenant reaches its processes, and its quota is shared among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmanager import keys, leases, quotas, tenants
from kvmanager.connection import Pool
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.options import RegistryOptions
from kvmanager.service.loops.settling import Settling
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.loop_steps import run_step
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    yield made
    made.pool.clear()


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
