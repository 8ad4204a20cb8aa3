"""A process that outlives its master opens its namespaces again at the first try: connections to
the master that is gone are not met twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.mooncake import client as client_module
from hicache_backends.mooncake.backend import MooncakeOptions, MooncakeStore, open_mooncake
from hicache_backends.mooncake.client import Client, connect, disconnect
from hicache_backends.mooncake.codes import NO_MASTER
from hicache_backends.mooncake.filesystem import MooncakeFileSystem
from hicache_backends.mooncake.options import find_cluster
from hicache_backends.objects.storage import ObjectStorage
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
from tests.backends.mooncake.cluster import MooncakeCluster

PAGES = digests_of(*range(4))


@pytest.fixture
def own_cluster(network: None, tmp_path: Path) -> Iterator[MooncakeCluster]:
    cluster = MooncakeCluster(tmp_path, port=50091, http_port=9043)
    start(cluster)
    yield cluster
    cluster.stop()


@pytest.fixture
def client(own_cluster: MooncakeCluster) -> Iterator[Client]:
    """The process's client of the cluster, whose idle connections are many."""
    client = connect(find_cluster({"master": own_cluster.address}))
    use(client)
    yield client
    disconnect(client)


def soon() -> Deadline:
    return Deadline.after_ms(10_000)


def start(cluster: MooncakeCluster) -> None:
    cluster.start_master()
    cluster.start_holder(64 << 20)


def restart(cluster: MooncakeCluster) -> None:
    cluster.stop()
    start(cluster)


def use(client: Client) -> None:
    """Ask much at once: each call that finds no idle connection to the master makes one."""
    keys = [str(n) for n in range(200)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: client.exists(keys, soon()), range(400)))


def opened(cluster: MooncakeCluster) -> ObjectStorage:
    return open_mooncake(NAMESPACE, MooncakeOptions(cluster.address, prefix="restart"))


def assert_serves(storage: ObjectStorage) -> None:
    assert all(put(storage, PAGES))
    assert get(storage, PAGES) == [True] * len(PAGES)


def test_a_store_that_was_closed_opens_again(own_cluster: MooncakeCluster) -> None:
    storage = opened(own_cluster)
    assert_serves(storage)
    assert storage.close(20_000)
    restart(own_cluster)
    storage = opened(own_cluster)
    assert_serves(storage)
    assert storage.close(20_000)


def test_a_store_opens_beside_one_that_was_kept_and_both_serve(
    own_cluster: MooncakeCluster, client: Client
) -> None:
    kept = opened(own_cluster)
    assert_serves(kept)
    restart(own_cluster)
    storage = opened(own_cluster)
    assert client.replaced == 1
    assert_serves(storage)
    assert_serves(kept)
    assert storage.close(20_000)
    assert kept.close(20_000)


def test_stores_that_open_at_once_replace_the_client_once(
    own_cluster: MooncakeCluster, client: Client
) -> None:
    restart(own_cluster)
    with ThreadPoolExecutor(4) as threads:
        storages = list(threads.map(lambda _: opened(own_cluster), range(4)))
    assert client.replaced == 1
    for storage in storages:
        assert_serves(storage)
        assert storage.close(20_000)


@pytest.mark.parametrize("first", ["read", "create"])
def test_whatever_the_first_call_is_it_is_tried_again(
    own_cluster: MooncakeCluster, client: Client, first: str
) -> None:
    fs = MooncakeFileSystem(own_cluster.address, skip_instance_cache=True)
    store = MooncakeStore(fs, "first")
    restart(own_cluster)
    if first == "read":
        assert store.read("a", soon()) is None
    else:
        store.create("a", b"whole", soon())
        assert store.read("a", soon()) == b"whole"
    assert client.replaced == 1
    store.close()


def test_no_number_of_restarts_is_too_many(
    own_cluster: MooncakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_MOST_RETIRED", 1)
    for n in range(3):
        restart(own_cluster)
        storage = opened(own_cluster)
        assert client.replaced == n + 1
        assert_serves(storage)
        assert storage.close(20_000)
        use(client)


def test_a_master_that_is_gone_is_refused_and_replaces_nothing(
    own_cluster: MooncakeCluster, client: Client
) -> None:
    own_cluster.stop()
    with pytest.raises(StorageUnavailable, match=str(NO_MASTER)):
        opened(own_cluster)
    assert client.replaced == 0
    restart(own_cluster)
    storage = opened(own_cluster)
    assert_serves(storage)
    assert storage.close(20_000)
