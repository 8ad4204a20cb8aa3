"""The same tests over HTTP and asyncio."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kvmanager.http_fixtures import server_binary, service
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import Cluster
from tests.kvmanager.servers import Server
from tests.kvmanager.test_aio_registry import async_members
from tests.kvmanager.test_registry import *  # noqa: F403  # every test, collected here too

__all__ = ["server_binary", "service"]


@pytest.fixture
def cluster(server: Server, service: Service) -> Iterator[Cluster]:
    with async_members(service.url) as members:
        yield members
