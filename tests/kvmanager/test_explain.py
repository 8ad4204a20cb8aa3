"""Why pages are found or missed: by flows over real servers, and by a real service."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator
from typing import Any

import pytest

from hicache_backends.identity import page_digests
from hicache_backends.outcomes import Reason
from kvmanager import keys, reports
from kvmanager.connection import Pool
from kvmanager.control.events import listen
from kvmanager.control.explain import MAX_PAGES, Explained, explain
from kvmanager.control.namespaces import id_of
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.model import MAX_PROBES
from kvmanager.options import RegistryOptions
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server
from tests.kvmanager.service_documents import post

TAG = keys.tag(NAMESPACE.fingerprint)


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    yield made
    made.pool.clear()


def why(
    driver: Driver, pages: list[bytes], reach: Collection[bytes] | None = None
) -> list[Explained]:
    found = driver.run(explain(TAG, pages, reach), soon())
    assert found is not None
    assert [each.digest for each in found] == pages
    return found


def reasons(driver: Driver, pages: list[bytes], *reach: bytes) -> list[Reason | None]:
    return [each.reason for each in why(driver, pages, reach or None)]


def test_a_stored_page_is_told_with_its_copies(driver: Driver, cluster: Cluster) -> None:
    one, other = cluster.store(), cluster.store(medium=os.urandom(16), shared=False)
    pages = digests(2)
    here, there = one.chain(pages), other.chain(pages)
    one.write(here)
    other.write(there)
    head, tail = why(driver, pages)
    assert (head.reason, tail.reason) == (None, None)
    assert "server on host" in head.detail
    assert {copy.location for copy in head.copies} == {here[0].location, there[0].location}
    assert [copy.children for copy in head.copies] == [1, 1]
    assert [copy.children for copy in tail.copies] == [0, 0]
    assert {copy.medium: copy.shared for copy in head.copies} == {
        cluster.medium: True,
        other.member.medium: False,
    }
    assert all(copy.alive and copy.reached and copy.used_s < 60 for copy in head.copies)
    assert {copy.store for copy in head.copies} == {one.member.store, other.member.store}


def test_a_page_on_another_hosts_disk_is_out_of_reach(driver: Driver, cluster: Cluster) -> None:
    asking, owner = cluster.store(), cluster.store(medium=os.urandom(16), shared=False)
    pages = digests(1)
    owner.write(owner.chain(pages))
    (found,) = why(driver, pages, [asking.member.medium])
    assert found.reason is Reason.OTHER_HOST
    assert "does not reach" in found.detail
    assert reasons(driver, pages, owner.member.medium) == [None]


def test_a_page_whose_owner_is_gone(driver: Driver, server: Server, cluster: Cluster) -> None:
    cluster.store()  # lives on the shared medium
    shared, private = (
        cluster.store(start=False),
        cluster.store(medium=os.urandom(16), shared=False, start=False),
    )
    pages = digests(2)
    shared.write(shared.chain(pages[:1]))
    private.write(private.chain(pages[1:]))
    with server.client() as client:
        for store in (shared, private):
            client.delete(b"r" + TAG + store.member.process)
    still, gone = why(driver, pages)
    assert (still.reason, gone.reason) == (None, Reason.OTHER_HOST)
    assert "gone" in still.detail
    assert not still.copies[0].alive
    assert "no process that is there reaches it" in gone.detail


def test_a_page_that_is_being_written(driver: Driver, cluster: Cluster) -> None:
    store = cluster.store()
    pages = digests(2)
    store.registry.claim(pages[:1], soon())
    written, never = why(driver, pages)
    assert (written.reason, never.reason) == (Reason.BEING_WRITTEN, Reason.NEVER_WRITTEN)
    assert "more at most" in written.detail
    assert "never written" in never.detail


def test_what_was_removed_is_remembered_while_somebody_listens(
    driver: Driver, cluster: Cluster
) -> None:
    store = cluster.store()
    store.settled()
    driver.run(listen(TAG), soon())
    pages = digests(4)
    entries = store.chain(pages)
    store.write(entries)
    store.registry.remove(entries[2:], soon())
    store.registry.report_bad(pages[1], entries[1].location, soon(), parent=pages[0])
    store.registry.report_bad(pages[0], entries[0].location, soon())
    evicted = (Reason.EVICTED, Reason.EVICTED)
    assert reasons(driver, pages) == [Reason.STALE_LOCATION, Reason.STALE_LOCATION, *evicted]
    assert "its owner evicted it" in why(driver, pages)[3].detail


def test_a_reported_page_waits_for_its_owner(driver: Driver, cluster: Cluster) -> None:
    store = cluster.store()
    store.settled()
    pages = digests(2)
    entries = store.chain(pages)
    store.write(entries)
    store.registry.report_bad(pages[1], entries[1].location, soon())  # parent not known
    assert reasons(driver, pages) == [None, Reason.STALE_LOCATION]


def test_a_cleared_page(driver: Driver, cluster: Cluster) -> None:
    store = cluster.store(start=False)
    pages = digests(1)
    store.write(store.chain(pages))
    store.registry.clear_namespace(soon())
    (found,) = why(driver, pages)
    assert (found.reason, "cleared since: epoch 1" in found.detail) == (Reason.EVICTED, True)


def test_a_namespace_that_is_switched_off(driver: Driver, server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    pages = digests(1)
    store.write(store.chain(pages))
    with server.client() as client:
        client.hset(b"n" + TAG, "mode", "off")
    (found,) = why(driver, pages)
    assert (found.reason, len(found.copies)) == (Reason.MODE, 1)


def test_a_registry_that_is_being_told_again(
    driver: Driver, server: Server, cluster: Cluster
) -> None:
    store = cluster.store()
    gauges = reports.Gauges(breaker="rebuilding")
    with server.client() as client:
        client.set(b"i" + TAG + store.member.process, reports.packed(1, gauges))
    assert reasons(driver, digests(1)) == [Reason.REGISTRY_REBUILDING]


def test_a_forgotten_medium(driver: Driver, server: Server, cluster: Cluster) -> None:
    store = cluster.store(start=False)
    pages = digests(1)
    store.write(store.chain(pages))
    medium = keys.medium_id(store.member.medium)
    with server.client() as client:
        client.hset(b"n" + TAG, mapping={"media": b"", "dropping": medium})
    (found,) = why(driver, pages)
    assert (found.reason, "forgotten" in found.detail) == (Reason.OTHER_HOST, True)


def test_a_pin_is_told(driver: Driver, server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    pages = digests(1)
    store.write(store.chain(pages))
    with server.client() as client:
        client.hset(b"y" + TAG, pages[0], 2_000_000_000)
    assert why(driver, pages)[0].pinned_until_s == 2_000_000_000


def test_many_pages_on_many_media_are_explained_in_short_calls(
    driver: Driver, server: Server, cluster: Cluster
) -> None:
    stores = [cluster.store(medium=os.urandom(16), start=False) for _ in range(20)]
    pages = digests(MAX_PAGES)
    stores[7].write(stores[7].chain(pages[:100]))
    with server.client() as client:
        client.config_resetstat()
        assert reasons(driver, pages) == [None] * 100 + [Reason.NEVER_WRITTEN] * 156
        calls = client.info("commandstats")["cmdstat_evalsha"]["calls"]
    assert calls >= MAX_PAGES * 41 // MAX_PROBES
    with pytest.raises(ValueError, match="256"):
        why(driver, digests(MAX_PAGES + 1))


def test_a_namespace_that_is_not_there(driver: Driver) -> None:
    assert driver.run(explain(TAG, digests(1)), soon()) is None


# over HTTP


@pytest.fixture(scope="module")
def service(shared_server: Server) -> Iterator[Service]:
    lines = ["router default " + "r" * 16, "admin other " + "o" * 16]
    started = Service(shared_server.url, environment={"KVMANAGER_TOKENS": ";".join(lines)})
    yield started.start()
    started.stop()


def ask(service: Service, asked: dict[str, Any], letter: str = "r") -> tuple[int, Any]:
    bearer = {"authorization": f"Bearer {letter * 16}"}
    return post(service, "/v1/explain", {"namespace": id_of(TAG), **asked}, bearer)


def test_pages_are_explained_by_hash(service: Service, cluster: Cluster) -> None:
    store: Store = cluster.store()
    hashes = ["a" * 64, "b" * 64]
    pages = page_digests(NAMESPACE.fingerprint, hashes)
    (entry,) = store.chain(pages[:1])
    store.write([entry])
    status, said = ask(service, {"hashes": hashes, "media": [cluster.medium.hex()]})
    assert status == 200
    first, second = said["pages"]
    assert (first["digest"], first["reason"]) == (pages[0].hex(), None)
    assert first["copies"][0]["location"] == entry.location.hex()
    assert first["copies"][0]["store"] == store.member.store.hex()
    assert (second["reason"], second["copies"]) == ("never_written", [])
    by_digest = ask(service, {"digests": [page.hex() for page in pages]})[1]
    assert [page["reason"] for page in by_digest["pages"]] == [None, "never_written"]


def test_another_tenants_pages_are_not_explained(service: Service, cluster: Cluster) -> None:
    cluster.store()
    eventually(lambda: ask(service, {"hashes": ["a"]})[0] == 200)
    unknown = ask(service, {"namespace": "0" * 18, "hashes": ["a"]}, "o")
    assert ask(service, {"hashes": ["a"]}, "o") == unknown
    assert unknown[0] == 404
    assert ask(service, {"hashes": ["a"]}, "x")[0] == 401


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"hashes": ["a"] * 257},
        {"digests": ["0" * 31]},
        {"digests": ["Z" * 32]},
        {"hashes": ["a"], "media": ["00"]},
        {"hashes": ["a"], "media": ["00" * 16] * 1025},
        {"hashes": ["a"], "namespace": None},
        {"hashes": ["a"], "namespace": "x" * 18},
    ],
)
def test_what_is_no_question_is_refused(service: Service, asked: dict[str, Any]) -> None:
    assert ask(service, asked)[0] == 422
