"""A walk meets every page, whatever moves meanwhile, and tells what is none."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from hicache_backends.errors import StaleEpoch
from kvmanager import keys
from kvmanager.connection import Pool
from kvmanager.control.walk import Foreign, Walk
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.options import RegistryOptions
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, soon
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)


@pytest.fixture
def driver(server: Server) -> Iterator[Driver]:
    made = Driver(Pool(Endpoint.parse(server.url), 1000), RegistryOptions())
    yield made
    made.pool.clear()


def begun(store: Store, step_buckets: int = 64) -> Walk:
    return Walk(TAG, 0, keys.medium_id(store.member.medium), step_buckets)


def fill(store: Store, pages: int) -> dict[bytes, bytes]:
    written: dict[bytes, bytes] = {}
    for _ in range(0, pages, 1000):
        entries = store.chain(digests(1000))
        store.write(entries)
        written.update((entry.digest, entry.location) for entry in entries)
    return written


def test_every_page_is_met_once(driver: Driver, cluster: Cluster) -> None:
    store = cluster.store()
    written = fill(store, 5000)
    walk, met = begun(store), []
    while not walk.done:
        batch = driver.run(walk.step(), soon())
        assert not batch.foreign
        assert not batch.reported
        met += batch.pages
    assert len(met) == 5000
    assert dict(met) == written
    assert walk.buckets == keys.FIRST_BUCKETS


def test_buckets_that_are_split_meanwhile_hide_no_page(
    server: Server, driver: Driver, cluster: Cluster
) -> None:
    store = cluster.store()
    with server.client() as client:  # as if it had begun with few
        client.hset(b"n" + TAG, b"f:0." + keys.medium_id(store.member.medium), 256)
    written = fill(store, 3000)
    walk, met = begun(store, step_buckets=8), set()
    first = walk.buckets = 0
    while not walk.done:
        batch = driver.run(walk.step(), soon())
        assert not batch.foreign
        met.update(batch.pages)
        first = first or walk.buckets
        if walk.buckets < first + 500:
            fill(store, 1000)
    assert walk.buckets >= first + 500, "no bucket was split"
    assert met >= set(written.items())


def test_what_is_no_page_is_told_apart(server: Server, driver: Driver, cluster: Cluster) -> None:
    store = cluster.store()
    pages = store.chain(digests(3))
    store.write(pages)
    store.settled()
    medium = keys.medium_id(store.member.medium)
    reported = store.pages.pop(pages[1].digest)  # a store that joins again does not announce it
    store.registry.report_bad(reported.digest, reported.location, soon())  # parent unknown
    names = [b"\1" + os.urandom(14) for _ in range(2)]
    here, other = keys.page_key(TAG, 0, medium, 7), keys.page_key(TAG, 0, medium, 9)
    plain = keys.page_key(TAG, 0, medium, 4095)
    with server.client() as client:
        entry = client.hget(
            keys.page_key(TAG, 0, medium, keys.bucket(pages[0].digest, 4096)), pages[0].digest[1:]
        )
        assert isinstance(entry, bytes)
        client.hset(here, mapping={names[0]: b"rubbish", b"short": entry, b"l" * 300: b"v" * 300})
        client.hset(other, names[1][:1] + b"\7" + names[1][2:], entry)
        client.set(plain, b"no hash")
    walk, found, foreign, reports = begun(store), [], [], []
    while not walk.done:
        batch = driver.run(walk.step(), soon())
        found += batch.pages
        foreign += batch.foreign
        reports += batch.reported
    assert {digest for digest, _ in found} == {pages[0].digest, pages[2].digest}
    assert reports == [(reported.digest, reported.location)]
    assert Foreign(here, b"short", entry) in foreign
    assert Foreign(here, b"l" * 64, b"v" * 64) in foreign
    assert Foreign(plain, None) in foreign
    assert [each.misplaced for each in foreign if each.key == other] == [True]
    assert len(foreign) == 5


def test_a_bucket_of_any_size_is_read_in_parts(
    server: Server, driver: Driver, cluster: Cluster
) -> None:
    store = cluster.store()
    key = keys.page_key(TAG, 0, keys.medium_id(store.member.medium), 100)
    with server.client() as client:
        for _ in range(5):
            client.hset(key, mapping={os.urandom(20): b"x" for _ in range(10_000)})
    walk = begun(store)
    names: set[bytes | None] = set()
    while not walk.done:
        batch = driver.run(walk.step(), soon())
        assert len(batch.foreign) < 5000
        names.update(each.name for each in batch.foreign)
    assert len(names) == 50_000


def test_a_namespace_that_is_cleared_meanwhile_ends_the_walk(
    driver: Driver, cluster: Cluster
) -> None:
    store = cluster.store()
    fill(store, 1000)
    walk = begun(store)
    driver.run(walk.step(), soon())
    store.registry.clear_namespace(soon())
    with pytest.raises(StaleEpoch):
        driver.run(walk.step(), soon())
