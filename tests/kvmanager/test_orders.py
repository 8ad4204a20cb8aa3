"""What heartbeats order their owners to do, and how it is known that they did."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvmanager import keys
from kvmanager.connection import Pool
from kvmanager.control.namespaces import StoreRecord, describe, members
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.options import RegistryOptions
from tests.kvmanager.http_fixtures import server_binary, service
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server

__all__ = ["server_binary", "service"]

TAG = keys.tag(NAMESPACE.fingerprint)


@pytest.fixture(params=["redis", "http"])
def cluster(request: pytest.FixtureRequest, server: Server, service: Service) -> Iterator[Cluster]:
    with Cluster(server.url if request.param == "redis" else service.url) as members:
        yield members


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    yield made
    made.pool.clear()


def ordered(store: Store) -> tuple[str | None, int | None, int | None]:
    last = store.orders[-1]
    return last.mode, last.limit_bytes, last.ttl_ms


def own(driver: Driver, store: Store) -> StoreRecord:
    (found,) = [m for m in driver.run(members(TAG), soon()) if m.store == store.member.store]
    return found


def test_orders_are_for_a_process_before_its_namespace_before_its_tenant(
    server: Server, cluster: Cluster
) -> None:
    store, other = cluster.store(), cluster.store()
    eventually(lambda: bool(store.orders and other.orders))
    assert ordered(store) == (None, None, None)
    with server.client() as client:
        client.hset(b"n" + TAG, mapping={"tenant_mode": "read", "tenant_ttl_ms": "5000"})
        eventually(lambda: ordered(store) == ("read", None, 5000))
        client.hset(b"n" + TAG, mapping={"mode": "read_write", "ttl_ms": "7000"})
        client.hset(b"x" + TAG, store.member.store, str(1 << 52))
        eventually(lambda: ordered(store) == ("read_write", 1 << 52, 7000))
        client.hset(b"o" + TAG, store.member.process, "off 1700000000")
        eventually(lambda: ordered(store) == ("off", 1 << 52, 7000))
        eventually(lambda: ordered(other) == ("read_write", None, 7000))
        client.delete(b"o" + TAG, b"x" + TAG)
        eventually(lambda: ordered(store) == ("read_write", None, 7000))


def test_the_mode_in_force_is_known_when_the_owner_has_obeyed(
    server: Server, cluster: Cluster, driver: Driver
) -> None:
    store = cluster.store()
    eventually(lambda: bool(store.orders))
    assert own(driver, store).mode is None
    with server.client() as client:
        client.hset(b"o" + TAG, store.member.process, "read 1700000000")
        eventually(lambda: own(driver, store).mode == "read")
        assert store.orders[-1].mode == "read"


def test_a_process_that_is_gone_is_named_by_its_store(
    server: Server, cluster: Cluster, driver: Driver
) -> None:
    store = cluster.store()
    entries = store.chain(digests(5))
    store.write(entries)
    store.settled()
    found = own(driver, store)
    assert (found.host, found.server, found.rank, found.alive) == ("host", "server", 0, True)
    assert found.medium == store.member.medium
    store.registry.close()
    gone = own(driver, store)
    assert (gone.host, gone.server, gone.alive) == ("host", "server", False)
    namespace = driver.run(describe(TAG), soon())
    assert namespace is not None
    assert (namespace.pages, namespace.bytes) == (5, 5 * NAMESPACE.page_bytes)
    assert namespace.namespace == NAMESPACE
    assert abs(namespace.seen_s - found.seen_s) <= 2
