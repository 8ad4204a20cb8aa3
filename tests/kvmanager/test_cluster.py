"""Namespaces on different shards of a real Cluster, whose list of all lies on one of them."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import random
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from redis.crc import key_slot

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError, RegistryUnavailable
from hicache_backends.identity import Namespace
from kvmanager import keys, resp, upkeep
from kvmanager.control import namespaces
from kvmanager.flow import Flow
from kvmanager.model import State
from kvmanager.service import routes
from kvmanager.service.backing import Backing
from kvmanager.service.documents import BeatAsked
from kvmanager.shards import finder
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.deployments import ClusterDeployment, await_cluster
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server, free_port

WITHIN_S = 20


@pytest.fixture(scope="module")
def shards() -> Iterator[ClusterDeployment]:
    """Three masters; two of them go on without the third."""
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        alone = ("--cluster-require-full-coverage", "no")
        made = ClusterDeployment(binary_of("valkey"), Path(directory), *alone, replicas=0)
        with made:
            yield made.start()


@pytest.fixture(scope="module")
def service(shards: ClusterDeployment) -> Iterator[Service]:
    started = Service(shards.url).start()
    yield started
    started.stop()


def spread(shards: ClusterDeployment) -> dict[Server, Namespace]:
    """A namespace on each master, the first on that of the list of all."""
    found: dict[Server, Namespace] = {}
    first = shards.master(keys.TAGS)
    for n in itertools.count():
        namespace = dataclasses.replace(NAMESPACE, model=f"model {n}")
        master = shards.master(tag_of(namespace))
        if master is first or first in found:
            found.setdefault(master, namespace)
        if len(found) == len(shards.servers):
            return found
    raise AssertionError


def tag_of(namespace: Namespace) -> bytes:
    return keys.tag(namespace.fingerprint)


def listed(shards: ClusterDeployment) -> set[bytes]:
    with shards.master(keys.TAGS).client() as client:
        return set(client.smembers("g"))


def written(store: Store) -> list[bytes]:
    eventually(partial(is_up, store), WITHIN_S)
    pages = digests(20)
    store.write(store.chain(pages))
    return pages


def is_up(store: Store) -> bool:
    return store.registry.state is State.UP


def answers(store: Store, pages: list[bytes]) -> bool:
    try:
        return store.lookup(pages).prefix == len(pages)
    except RegistryError:
        return False


def test_each_namespace_lies_on_its_shard_and_all_are_listed(
    shards: ClusterDeployment, service: Service
) -> None:
    homes = spread(shards)
    for url in (shards.url, service.url):
        with shards.master(keys.TAGS).client() as client:
            client.delete("g")
        with Cluster(url) as members:
            for home, namespace in homes.items():
                store = members.store(namespace=namespace)
                pages = written(store)
                assert answers(store, pages)
                with home.client() as client:
                    assert client.exists(b"n" + tag_of(namespace))
            assert listed(shards) == set(map(tag_of, homes.values()))


def test_the_service_asks_for_keys_without_a_tag_where_they_lie(
    shards: ClusterDeployment,
) -> None:
    tags = [tag_of(namespace) for namespace in spread(shards).values()]

    def about_many() -> Flow[list[resp.Reply]]:
        said = []
        for key in (b"g", b"a", b"elsewhere", b"else"):
            said.append((yield resp.command(b"EXISTS", key)))
            said.append((yield resp.command(b"PING")))
        return said

    async def asked() -> None:
        backing = Backing(shards.url)
        with pytest.raises(RegistryUnavailable, match="no Redis found yet"):
            await backing.run(about_many(), b"", 1000)
        await backing.open()
        for tag in tags:
            await backing.run(enlisted(tag), b"", 1000)
        cursor, found = await backing.run(namespaces.tags(b"0", 100), b"", 1000)
        assert cursor == b"0"
        assert set(tags) <= set(found)
        assert len(await backing.run(about_many(), b"", 1000)) == 8
        await backing.ping()
        assert not backing.down
        await backing.close()

    def enlisted(tag: bytes) -> Flow[resp.Reply]:
        reply: resp.Reply = yield resp.command(b"SADD", keys.TAGS, tag)
        return reply

    asyncio.run(asked())


def test_a_shard_that_is_down_leaves_the_others_alone_and_is_told_everything_again(
    shards: ClusterDeployment, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "ENLIST_EVERY_S", 0.3)
    homes = spread(shards)
    home = next(iter(homes))  # the list of all is lost with it
    with Cluster(shards.url) as direct, Cluster(service.url) as over_http:
        stores = {}
        for namespace in homes.values():
            for members in (direct, over_http):
                store = members.store(namespace=namespace)
                stores[store] = (namespace, written(store))
        lost = {store for store, (namespace, _) in stores.items() if namespace is homes[home]}
        home.kill()
        eventually(lambda: all(store.registry.state is State.DOWN for store in lost), WITHIN_S)
        for store in stores.keys() - lost:
            pages = stores[store][1]
            eventually(partial(answers, store, pages), WITHIN_S)
        assert service.get("/readyz")[0] == 200
        home.start()  # empty, but for its part in the Cluster
        await_cluster(home)
        for store, (_, pages) in stores.items():
            eventually(partial(is_up, store), WITHIN_S)
            eventually(partial(answers, store, pages), WITHIN_S)
        eventually(lambda: listed(shards) == set(map(tag_of, homes.values())), WITHIN_S)


@pytest.mark.parametrize(("chance", "again"), [(0.0, True), (0.9, False)])
def test_heartbeats_over_http_renew_the_list_of_all_now_and_then(
    monkeypatch: pytest.MonkeyPatch, chance: float, again: bool
) -> None:
    monkeypatch.setattr(random, "random", lambda: chance)
    asked = BeatAsked.model_construct(
        process=bytes(16), host="", server="", store=bytes(16), medium=bytes(16), obeyed=0, ttl_ms=1
    )
    heartbeat = next(route for route in routes.DATA_ROUTES if route.name == "heartbeat")
    after = heartbeat.plan(NAMESPACE, asked).after
    listing = resp.command(b"SADD", b"g", tag_of(NAMESPACE))
    assert after({"returned": False}) == listing
    assert (after({"returned": True}) == listing) is again


def test_a_session_follows_its_slot_to_another_node(shards: ClusterDeployment) -> None:
    slot = key_slot(tag_of(NAMESPACE))
    before = shards.master(tag_of(NAMESPACE))
    after = next(server for server in shards.servers if server is not before)
    with Cluster(shards.url) as members:
        store = members.store()
        pages = written(store)
        with before.client() as client:
            to = ("SLOTSRANGE", slot, slot, "NODE", shards.ids[shards.servers.index(after)])
            client.execute_command("CLUSTER MIGRATESLOTS", *to)
        eventually(lambda: shards.master(tag_of(NAMESPACE)) is after, WITHIN_S)
        shown = f" at 127.0.0.1:{after.port}"
        eventually(lambda: store.registry.driver.pool.shown.endswith(shown), WITHIN_S)
        more = written(store)
        assert answers(store, pages)
        assert answers(store, more)


def test_seeds_that_are_gone_are_passed_over(shards: ClusterDeployment) -> None:
    living = shards.servers[1].port
    found = finder(f"redis-cluster://127.0.0.1:{free_port()},127.0.0.1:{living}")
    for _ in range(4):
        assert len(found.find(Deadline.after_ms(2000)).endpoints) == 3
    # and once it is known who else there is, no seed needs to live
    shards.servers[1].freeze()
    try:
        for _ in range(2):
            assert len(found.find(Deadline.after_ms(2000)).endpoints) == 3
    finally:
        shards.servers[1].thaw()


def test_one_node_named_as_if_it_were_all_says_so(shards: ClusterDeployment) -> None:
    other = next(s for s in shards.servers if s is not shards.master(tag_of(NAMESPACE)))
    with pytest.raises(RegistryError, match="redis-cluster://"):
        Store(other.url, medium=b"m" * 16)


def test_what_is_no_cluster_says_so(server: Server) -> None:
    with pytest.raises(RegistryError, match="cluster support disabled"):
        finder(f"redis-cluster://127.0.0.1:{server.port}").find(soon())
