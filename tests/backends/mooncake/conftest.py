from __future__ import annotations

from collections.abc import Iterator

import pytest

from hicache_backends.mooncake.client import Client, connect, disconnect
from hicache_backends.mooncake.options import find_cluster
from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.mooncake.real import mooncake_network


@pytest.fixture(scope="package", autouse=True)
def network() -> Iterator[None]:
    """What the real Mooncake needs, in a network where nobody else is."""
    with mooncake_network():
        yield


@pytest.fixture(scope="package")
def cluster(network: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeCluster]:
    """A master and one holder, which every test leaves as they were, its own keys apart."""
    cluster = MooncakeCluster(tmp_path_factory.mktemp("mooncake"))
    cluster.start_master()
    cluster.start_holder()
    client = connect(find_cluster({"master": cluster.address}))  # made and ended once
    yield cluster
    disconnect(client)
    cluster.stop()


@pytest.fixture
def client(own_cluster: MooncakeCluster) -> Iterator[Client]:
    """The process's client of the cluster that a test module has of its own."""
    client = connect(find_cluster({"master": own_cluster.address}))
    yield client
    disconnect(client)
