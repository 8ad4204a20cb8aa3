from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.kvmanager.members import Cluster
from tests.kvmanager.servers import BINARIES, Server

settings.register_profile("busy machine", deadline=None)
settings.load_profile("busy machine")


def binary_of(name: str) -> str:
    """The path of one kind of server."""
    found = BINARIES[name]
    if found is None:
        if os.environ.get("CI"):
            pytest.fail(f"{name} is not installed, and CI must test on it")
        pytest.skip(f"{name} is not installed")
    return found


@pytest.fixture(scope="session", params=sorted(BINARIES))
def server_binary(request: pytest.FixtureRequest) -> str:
    """The path of each kind of server."""
    return binary_of(request.param)


@pytest.fixture(scope="session")
def shared_server(server_binary: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        server = Server(server_binary, Path(directory)).start()
        yield server
        server.stop()


@pytest.fixture
def server(shared_server: Server) -> Server:
    """An empty server, for tests that leave it running."""
    with shared_server.client() as client:
        client.flushall()
        client.config_set("maxmemory", 0)
        client.config_set("maxmemory-policy", "noeviction")
    return shared_server


@pytest.fixture
def own_server(server_binary: str) -> Iterator[Server]:
    """A server that the test may stop, kill and restart."""
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        server = Server(server_binary, Path(directory)).start()
        yield server
        server.stop()


@pytest.fixture
def make_server(server_binary: str) -> Iterator[Callable[..., Server]]:
    """Makes servers with settings of their own."""
    made: list[Server] = []
    with tempfile.TemporaryDirectory(prefix="kv") as directory:

        def make(*settings: str) -> Server:
            place = Path(directory, str(len(made)))
            place.mkdir()
            made.append(Server(server_binary, place, *settings))
            return made[-1]

        yield make
        for server in made:
            server.stop()


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    """Members of one namespace on an empty server, closed after the test."""
    with Cluster(server.url) as members:
        yield members


@pytest.fixture
def own_cluster(own_server: Server) -> Iterator[Cluster]:
    """The same on a server that the test may stop, kill and restart."""
    with Cluster(own_server.url) as members:
        yield members
