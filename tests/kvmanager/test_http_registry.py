"""The service keeps every promise that Redis itself keeps: the same tests, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kvmanager.http_service import Service
from tests.kvmanager.members import Cluster
from tests.kvmanager.servers import Server
from tests.kvmanager.test_registry import *  # noqa: F403  # every test, collected here too


@pytest.fixture(scope="module")
def service(shared_server: Server) -> Iterator[Service]:
    started = Service(shared_server.url).start()
    yield started
    started.stop()


@pytest.fixture
def cluster(server: Server, service: Service) -> Iterator[Cluster]:
    with Cluster(service.url) as members:
        yield members
