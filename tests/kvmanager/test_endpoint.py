"""Where the registry may be, and what is said about it."""

from __future__ import annotations

import logging

import pytest

from hicache_backends.errors import ConfigError
from kvmanager.endpoint import Endpoint, redacted
from kvmanager.model import State
from tests.kvmanager.members import Cluster, Store, digests
from tests.kvmanager.servers import Server


@pytest.mark.parametrize("url", ["ftp://kv:8080", "tcp://user:secret@kv"])
def test_another_scheme_names_the_endpoints_that_work(url: str) -> None:
    with pytest.raises(ConfigError) as error:
        Store(url, medium=b"m" * 16)
    for scheme in ("redis://", "rediss://", "unix://", "http://", "https://", "embedded"):
        assert scheme in str(error.value)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "localhost:6379",
        "reddis://h",
        "redis://h:port",
        "redis://h:99999",
        "unix://",
        "file:///x",
    ],
)
def test_what_is_no_endpoint_is_an_error_of_the_configuration(url: str) -> None:
    with pytest.raises(ConfigError, match="endpoint"):
        Store(url, medium=b"m" * 16)


def test_an_unknown_option_of_a_url_is_an_error(server: Server) -> None:
    with pytest.raises(ConfigError, match="no_such_option"):
        Store(f"{server.url}?no_such_option=1", medium=b"m" * 16)


def test_embedded_needs_a_directory() -> None:
    with pytest.raises(ConfigError, match="embedded_dir"):
        Store("embedded", medium=b"m" * 16)


@pytest.mark.parametrize(
    "url",
    [
        "redis://:hunter2@h:1/0",
        "rediss://user:hunter2@h:1/0?ssl_password=hunter2",
        "redis://h?password=hunter2&db=1",
        "unix://user:hunter2@/run/valkey.sock",
        "redis://:hunter2@[::1",
    ],
)
def test_secrets_are_never_shown(url: str, caplog: pytest.LogCaptureFixture) -> None:
    assert "hunter2" not in redacted(url)
    try:
        said = repr(Endpoint.parse(url))
    except ConfigError as error:
        said = str(error)
    assert "hunter2" not in said + caplog.text


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("redis://10.1.2.3", True),
        ("redis://kv.internal", True),
        ("redis://0.0.0.0", True),
        ("redis://:password@10.1.2.3", False),
        ("rediss://10.1.2.3", False),
        ("redis://127.0.0.1", False),
        ("redis://localhost", False),
        ("redis://[::1]", False),
        ("unix:///run/valkey.sock", False),
    ],
)
def test_an_open_server_off_this_machine_is_warned_about(
    url: str, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    Endpoint.parse(url)
    warnings = [r for r in caplog.records if r.levelno == logging.WARNING]
    assert bool(warnings) is warned


def test_a_unix_socket_serves_as_well(server: Server) -> None:
    with Cluster(server.unix_url) as cluster:
        store = cluster.store()
        store.settled()
        keys = digests(3)
        store.write(store.chain(keys))
        assert store.lookup(keys).prefix == 3


def test_a_missing_socket_is_a_registry_that_is_down(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    with Cluster(f"unix://{tmp_path_factory.mktemp('none')}/s") as cluster:
        assert cluster.store().registry.state is State.DOWN
