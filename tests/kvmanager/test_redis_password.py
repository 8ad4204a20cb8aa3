"""A Redis whose password is missing or wrong: who reads the log knows at once what to mend."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_backends.errors import RegistryError, RegistryRefused, RegistryUnavailable
from hicache_storage.tools.remedies import remedy
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import eventually
from tests.kvmanager.servers import Server


@pytest.fixture(scope="session", params=["redis", "valkey"])
def server_binary(request: pytest.FixtureRequest) -> str:
    """They say it at different moments."""
    return binary_of(request.param)


def listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True


@pytest.mark.parametrize("given", ["", ":hunter3hunter3@"], ids=["missing", "wrong"])
def test_it_is_logged_once_at_once_and_everybody_is_told_whose_it_is(
    make_server: Callable[..., Server], tmp_path: Path, given: str
) -> None:
    locked = make_server("--requirepass", "hunter2hunter2")
    locked.start(wait=False)
    eventually(lambda: listens(locked.port))
    log = tmp_path / "log"
    url = f"redis://{given}127.0.0.1:{locked.port}"
    service = Service(url, "--no-loops", log=log).start()

    def status() -> str:
        code, said = service.get("/readyz")
        assert code == 503
        return str(json.loads(said)["status"])

    try:
        eventually(lambda: "--redis-password-file" in log.read_text())
        eventually(lambda: status().startswith("Redis refuses"))
        assert service.terminate() == 0
        text = log.read_text()
        assert text.count("--redis-password-file") == 1, text
        assert "hunter" not in text
    finally:
        service.stop()


@pytest.mark.parametrize(
    ("error", "what"),
    [
        (RegistryRefused("the service does not allow it: show one (status 401)"), "token_file"),
        (RegistryUnavailable("the service cannot answer: down (status 503)"), "its own Redis"),
        (RegistryRefused("redis://h: NOAUTH"), "global_kvmanager.username, password"),
        (RegistryUnavailable("redis://h: refused"), "global_kvmanager.endpoint"),
    ],
)
def test_the_remedy_is_for_the_one_whose_fault_it_is(error: RegistryError, what: str) -> None:
    assert what in remedy(error)
