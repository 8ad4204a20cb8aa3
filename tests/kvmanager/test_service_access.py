"""Tokens: what they open, and what stays closed."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import ConfigError, RegistryRefused
from hicache_backends.identity import Namespace
from kvmanager import keys
from kvmanager.service.access import (
    Access,
    Forbidden,
    Role,
    Unknown,
    new_token,
    read_tokens,
    token_line,
)
from kvmanager.service.serving import Address
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import FAST, Cluster, digests
from tests.kvmanager.servers import Server
from tests.kvmanager.service_documents import data_paths, example, namespace, openapi, post

__all__ = ["server_binary"]

TOKENS = {
    "ours": (Role.NODE, "ours"),
    "theirs": (Role.NODE, "theirs"),
    "router": (Role.ROUTER, "ours"),
    "admin": (Role.ADMIN, "ours"),
    "root": (Role.ADMIN, "*"),
}
SECRETS = {name: new_token() for name in TOKENS}
STORED = {"process": "aa" * 16, "store": "bb" * 16, "medium": "cc" * 16}
PAGE = "ab" * 16
"""As `service_documents.example` names it."""


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {SECRETS[name]}"}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service") / "log"


@pytest.fixture(scope="module")
def service(
    shared_server: Server, log: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Service]:
    """It has some of its tokens from a file, hashed, and the rest from its environment."""
    lines = [token_line(role, [tenant], SECRETS[name]) for name, (role, tenant) in TOKENS.items()]
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    path.write_text("\n".join(["# of the engines", "", *lines[:3]]))
    started = Service(
        shared_server.url,
        "--tokens",
        str(path),
        environment={"KVMANAGER_TOKENS": ";".join(lines[3:])},
        log=log,
    ).start()
    yield started
    started.stop()


@pytest.fixture
def filled(server: Server, service: Service) -> Service:
    """A page is stored for the tenant `ours`, as the example of every route names it."""
    asked = {"namespace": namespace("ours"), **STORED, "host": "h", "server": "s"}
    assert post(service, "/v1/register", {**asked, "ttl_ms": 60_000}, bearer("ours"))[0] == 200
    publish = {"namespace": namespace("ours"), "epoch": 0, "sequence": 1, "digests": [PAGE]}
    publish |= {"store": STORED["store"], "medium": STORED["medium"]}
    publish |= {"parents": ["00" * 16], "locations": ["0102"]}
    assert post(service, "/v1/publish", publish, bearer("ours"))[1]["results"] == "00"
    return service


def contents(server: Server, tenant: str) -> dict[bytes, Any]:
    """Everything that a server holds of a tenant's namespace."""
    tag = keys.tag(Namespace(**namespace(tenant)).fingerprint)
    with server.client() as client:
        return {key: client.dump(key) for key in client.scan_iter() if tag in key}


def test_no_route_lets_a_token_reach_another_tenant(server: Server, filled: Service) -> None:
    document = openapi(filled)
    paths = data_paths(document)
    assert len(paths) >= 10
    before = contents(server, "ours")
    assert len(before) >= 4
    for path in paths:
        asked = example(document, path, "ours")
        status, problem = post(filled, path, asked, bearer("theirs"))
        assert (status, problem["error"]) == (403, "forbidden"), path
        assert "ours" not in json.dumps(problem)
    assert contents(server, "ours") == before, "nothing was written, read or evicted"
    for path in paths:
        status, _ = post(filled, path, example(document, path, "theirs"), bearer("theirs"))
        assert status in (200, 409), path
    assert contents(server, "ours") == before, "not even by the same names in their own tenant"


def test_no_route_answers_without_a_token_that_is_known(filled: Service) -> None:
    document = openapi(filled)
    for path in [*data_paths(document), "/metrics"]:
        method = "post" if path.startswith("/v1/") else "get"
        body = json.dumps(example(document, path, "ours")).encode() if method == "post" else b""
        for shown in (
            {},
            {"authorization": ""},
            {"authorization": "Bearer"},
            {"authorization": "Bearer "},
            {"authorization": f"Bearer {SECRETS['ours']}x"},
            {"authorization": f"Basic {SECRETS['ours']}"},
            {"authorization": SECRETS["ours"]},
        ):
            status, said = filled.request(method.upper(), path, body, shown)
            assert status == 401, (path, shown)
            assert SECRETS["ours"].encode() not in said


def test_a_router_reads_and_changes_nothing(filled: Service) -> None:
    document = openapi(filled)
    for path in data_paths(document):
        status, _ = post(filled, path, example(document, path, "ours"), bearer("router"))
        assert (status != 403) == (path == "/v1/lookup"), path


@pytest.mark.parametrize("name", ["admin", "root", "ours"])
def test_a_token_of_the_tenant_finds_its_page(filled: Service, name: str) -> None:
    asked = {"namespace": namespace("ours"), "epoch": 0, "digests": [PAGE]}
    status, answer = post(
        filled, "/v1/lookup", {**asked, "media": [STORED["medium"]]}, bearer(name)
    )
    assert (status, answer["locations"]) == (200, ["0102"])


def test_the_client_shows_its_token_and_is_refused_without(
    server: Server, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KVMANAGER_TOKEN", SECRETS["theirs"])
    theirs = Namespace(**namespace("theirs"))
    with Cluster(service.url) as cluster:
        store = cluster.store(namespace=theirs)
        pages = digests(3)
        store.write(store.chain(pages))
        assert store.lookup(pages).prefix == 3
        with pytest.raises(RegistryRefused, match="403") as refusal:
            cluster.store(namespace=Namespace(**namespace("ours")))
        assert SECRETS["theirs"] not in str(refusal.value)
        wrong = dataclasses.replace(FAST, token=new_token())
        with pytest.raises(RegistryRefused, match="401"):
            cluster.store(namespace=theirs, options=wrong)
    assert str(wrong.token) not in repr(wrong)
    assert FAST.token is None


def test_no_secret_is_in_the_log(filled: Service, log: Path) -> None:
    for name in SECRETS:
        post(filled, "/v1/lookup", {}, bearer(name))
    text = log.read_text()
    assert "serving redis://" in text
    assert not [name for name, secret in SECRETS.items() if secret in text]


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "[::]:0", "192.0.2.7:0", "kv.example:0"])
def test_an_address_that_others_reach_needs_tokens(listen: str) -> None:
    address = Address.parse(listen)
    with pytest.raises(ConfigError, match="kvmanager token"):
        address.allowed_for(Access())
    address.allowed_for(read_tokens(None, f"node a {'x' * 16}"))


@pytest.mark.parametrize("listen", ["127.0.0.1:1", "[::1]:1", "localhost:1", ":1"])
def test_this_machine_alone_needs_none(listen: str) -> None:
    Address.parse(listen).allowed_for(Access())


@pytest.mark.parametrize("listen", ["", "8080", "::1:80", "h:port", "h:70000", "h:-1"])
def test_what_is_no_address_to_listen_on(listen: str) -> None:
    with pytest.raises(ConfigError, match="--listen"):
        Address.parse(listen)


@pytest.mark.parametrize(
    "line",
    [
        "node",
        "node a",
        "node a hunter2",
        "king a hunter2hunter2hunter2",
        "node a,, hunter2hunter2hunter2",
        "node a sha256:hunter2",
        "node a b hunter2hunter2hunter2",
    ],
)
def test_a_line_that_is_no_token_is_named_without_it(line: str, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# remark\n{line}\n")
    with pytest.raises(ConfigError, match=r"tokens, line 2") as error:
        read_tokens(path, "")
    assert "hunter2" not in str(error.value)


def test_a_file_without_tokens_does_not_open_the_service(tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("# none\n")
    with pytest.raises(ConfigError, match="no token"):
        read_tokens(tmp_path / "tokens", "")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_tokens(tmp_path / "missing", "")


def test_a_token_is_known_by_its_hash_and_to_its_last_character() -> None:
    token = new_token()
    access = read_tokens(None, token_line(Role.NODE, ["a", "b"], token))
    assert token not in repr(access.grant(f"bearer {token}", ""))
    access.grant(f"Bearer {token}", "").check_tenant("b")
    with pytest.raises(Forbidden):
        access.grant(f"Bearer {token}", "").check_tenant("*")
    for wrong in (token[:-1], token + "x", token.swapcase(), f"{token} {token}", "\udcff", ""):
        with pytest.raises(Unknown):
            access.grant(f"Bearer {wrong}", "")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "192.0.2.1", ""])
def test_without_tokens_a_request_for_another_name_is_refused(host: str) -> None:
    """A page in a browser on this machine can send one, by a name that it makes resolve to it."""
    with pytest.raises(Forbidden):
        Access().grant("", host)


def test_the_embedded_registry_can_be_served(tmp_path: Path) -> None:
    service = Service("embedded", "--embedded-dir", str(tmp_path / "registry")).start()
    try:
        with Cluster(service.url) as cluster:
            store = cluster.store()
            pages = digests(3)
            store.write(store.chain(pages))
            assert store.lookup(pages).prefix == 3
    finally:
        assert service.terminate() == 0


def certificate(directory: Path) -> tuple[Path, Path]:
    chain, key = directory / "cert.pem", directory / "key.pem"
    asked = "openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=localhost -addext"
    files = ["subjectAltName=DNS:localhost", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(asked.split() + files, check=True, capture_output=True)
    return chain, key


def test_a_client_speaks_tls_and_believes_no_other_certificate(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain, key = certificate(tmp_path)
    service = Service(server.url, "--tls-cert", str(chain), "--tls-key", str(key), tls=chain)
    service.start()
    try:
        with Cluster(f"https://localhost:{service.port}") as cluster:
            with pytest.raises(RegistryRefused, match="certificate"):
                cluster.store()
            monkeypatch.setenv("SSL_CERT_FILE", str(chain))
            store = cluster.store()
            pages = digests(100)
            store.write(store.chain(pages))
            assert store.lookup(pages).prefix == 100
            store.settled()
    finally:
        service.stop()
