"""Where a prefix is stored, by an endpoint: of Sentinels and Clusters, also after failovers."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_backends.errors import ConfigError, RegistryUnavailable
from kvmanager import keys
from kvmanager.control.locate import ConnectedLocator, Locator
from kvmanager.options import RegistryOptions
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.deployments import (
    ClusterDeployment,
    Deployment,
    SentinelDeployment,
    await_link,
)
from tests.kvmanager.members import NAMESPACE, eventually, soon
from tests.kvmanager.servers import Server, free_port
from tests.kvmanager.test_locate import HASHES, TAG, Fleet

QUICK = RegistryOptions(timeout_ms=1000, connect_timeout_ms=500)
NAMESPACES = [dataclasses.replace(NAMESPACE, pool=f"pool {n}") for n in range(6)]
TAGS = [keys.tag(namespace.fingerprint) for namespace in NAMESPACES]


@pytest.fixture(params=[SentinelDeployment, ClusterDeployment], ids=["sentinel", "cluster"])
def deployment(request: pytest.FixtureRequest) -> Iterator[Deployment]:
    with (
        tempfile.TemporaryDirectory(prefix="kv") as directory,
        request.param(binary_of("valkey"), Path(directory)) as started,
    ):
        yield started.start()


def pages(locator: ConnectedLocator, tags: list[bytes]) -> dict[str, int]:
    return {found.server: found.pages for found in locator.locate(tags, HASHES, soon())}


def pages_or_none(locator: ConnectedLocator, tags: list[bytes]) -> dict[str, int] | None:
    """None while the registry is down."""
    try:
        return pages(locator, tags)
    except RegistryUnavailable:
        return None


def test_namespaces_on_all_shards_are_asked_also_after_a_failover(deployment: Deployment) -> None:
    fleet = Fleet(deployment.url)
    for n, namespace in enumerate(NAMESPACES):
        fleet.rank("both", range(40 + n), namespace=namespace)
    fleet.rank("one", range(7), namespace=NAMESPACES[0])
    with Locator.at(deployment.url, QUICK) as locator:
        assert pages(locator, TAGS) == {"both": 40, "one": 7}
        assert pages(locator, TAGS[5:]) == {"both": 45}
        lost = deployment.master(TAGS[0])
        await_link(deployment.replica_of(lost))
        lost.kill()
        eventually(lambda: pages_or_none(locator, TAGS) == {"both": 40, "one": 7}, 30)
    for session in fleet.sessions:
        session.close(500)


def test_one_server_is_asked_again_when_it_is_back(own_server: Server) -> None:
    fleet = Fleet(own_server.url)
    fleet.rank("s", range(9))
    with Locator.at(own_server.url, QUICK) as locator:
        assert pages(locator, [TAG]) == {"s": 9}
        own_server.kill()
        assert pages_or_none(locator, [TAG]) is None
        own_server.start()
        eventually(lambda: pages_or_none(locator, [TAG]) == {})
    for session in fleet.sessions:
        session.close(500)


def test_a_registry_that_is_down_is_not_tried_at_every_call() -> None:
    with Locator.at(f"redis://127.0.0.1:{free_port()}", QUICK) as locator:
        for said in ("refused", "the registry is down"):
            with pytest.raises(RegistryUnavailable, match=said):
                locator.locate([TAG], HASHES, soon())


def test_an_endpoint_that_names_no_redis_is_refused() -> None:
    with pytest.raises(ConfigError):
        Locator.at("http://127.0.0.1:8080")
