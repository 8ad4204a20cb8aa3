"""A token of one tenant can't read, list, count or change what another one has: every route of the
service's own document is tried, and none without a rule is let through."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.identity import Namespace
from kvmanager import keys
from kvmanager.service.access import Access, Role, new_token, token_line
from kvmanager.service.app import make_app
from kvmanager.service.backing import Backing
from kvmanager.service.routes import DATA_ROUTES
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.isolation_rules import (
    ABSENT,
    HOST,
    MEDIUM,
    PAGE,
    PROCESS,
    RULES,
    SECRETS,
    SERVER,
    STORE,
    Others,
    Rule,
)
from tests.kvmanager.members import eventually
from tests.kvmanager.servers import Server
from tests.kvmanager.service_documents import example, namespace

__all__ = ["server_binary"]

DOCUMENT = make_app(Backing("redis://127.0.0.1:1"), Access()).control.openapi()
OPERATIONS = [
    (method.upper(), path)
    for path, operations in sorted(DOCUMENT["paths"].items())
    for method in sorted(operations)
]
CONTROL = [one for one in OPERATIONS if one[1] not in {route.path for route in DATA_ROUTES}]
TOKENS = {
    "admin": (Role.ADMIN, "ours"),
    "node": (Role.NODE, "ours"),
    "router": (Role.ROUTER, "ours"),
    "theirs": (Role.ADMIN, "theirs"),
}
SHOWN = {name: new_token() for name in TOKENS}
FIRST_PART = 1 << 16


@pytest.fixture(scope="module")
def service(shared_server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    path: Path = tmp_path_factory.mktemp("tokens") / "tokens"
    lines = [token_line(role, [tenant], SHOWN[name]) for name, (role, tenant) in TOKENS.items()]
    path.write_text("\n".join(lines))
    started = Service(shared_server.url, "--tokens", str(path), "--no-loops").start()
    yield started
    started.stop()


@pytest.fixture
def filled(server: Server, service: Service) -> Service:
    """Both tenants have a process with a page, and whatever else there can be of it."""
    fill(service, "theirs", "theirs", ("1f" * 16, "2f" * 16, "3f" * 16, "4f" * 16))
    fill(service, "admin", "ours", (PROCESS, STORE, MEDIUM, PAGE), HOST, SERVER)
    return service


def ask(
    service: Service, token: str, method: str, url: str, body: object = None
) -> tuple[int, str]:
    """Status and text; of an answer that goes on, its first part."""
    headers = {"authorization": f"Bearer {SHOWN[token]}"} if token else {}
    connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=10)
    try:
        sent = None if body is None else json.dumps(body)
        connection.request(method, url, sent, {**headers, "content-type": "application/json"})
        answer = connection.getresponse()
        whole = answer.getheader("content-length") is not None
        return answer.status, (answer.read() if whole else answer.read1(FIRST_PART)).decode()
    finally:
        connection.close()


def fill(
    service: Service,
    token: str,
    tenant: str,
    names: tuple[str, str, str, str],
    host: str = "host",
    server: str = "server",
) -> None:
    process, store, medium, page = names
    about = {"namespace": namespace(tenant)}

    def tell(method: str, url: str, asked: dict[str, Any]) -> None:
        status, said = ask(service, token, method, url, asked)
        assert status == 200, said

    member = {"process": process, "store": store, "medium": medium, "host": host, "server": server}
    tell("POST", "/v1/register", {**about, **member, "ttl_ms": 60_000})
    entry: dict[str, Any] = {
        "store": store,
        "medium": medium,
        "digests": [page],
        "parents": ["00" * 16],
    }
    entry |= {"locations": [store + "00" * 28], "epoch": 0, "sequence": 1}
    tell("POST", "/v1/publish", {**about, **entry})
    path = f"/v1/namespaces/{keys.tag_bytes(tag_of(tenant)).hex()}"
    tell("PUT", f"{path}/pins", {"digests": [page], "ttl_s": 600})
    tell("PUT", f"/v1/tenants/{tenant}", {"quota_bytes": 1 << 30})


def tag_of(tenant: str) -> bytes:
    return keys.tag(Namespace(**namespace(tenant)).fingerprint)


def contents(server: Server, tenant: str) -> dict[bytes, Any]:
    """Everything that a server holds of a tenant."""
    tags = (tag_of(tenant), keys.tenant_tag(tenant))
    with server.client() as client:
        named = [key for key in client.scan_iter() if any(tag in key for tag in tags)]
        return {key: client.dump(key) for key in named}


def test_every_route_has_a_rule_and_every_rule_a_route() -> None:
    assert set(CONTROL) == set(RULES), "tests/kvmanager/isolation_rules.py"


@pytest.mark.parametrize(("method", "path"), CONTROL)
def test_a_control_route_hides_the_things_of_others(
    server: Server, filled: Service, method: str, path: str
) -> None:
    rule = RULES[method, path]
    url = rule.url or path
    before = contents(server, "ours")
    status, said = ask(filled, "theirs", method, url, rule.body)
    assert contents(server, "ours") == before
    assert not [secret for secret in SECRETS if secret in said]
    if rule.others is Others.REFUSED:
        assert status in (403, 404), said
        assert (status, said) == ask(filled, "theirs", method, *absent(rule, url))
    else:
        assert status == 200, said
    if rule.others is not Others.SAME:
        assert ask(filled, "", method, url, rule.body)[0] == 401
        for role in ("node", "router"):
            status, said = ask(filled, role, method, url, rule.body)
            assert (status == 403) == (role not in rule.roles), (role, said)
    if rule.shows:
        eventually(lambda: shown(filled, method, url, rule.body))
    else:
        assert ask(filled, "admin", method, url, rule.body)[0] == 200


def absent(rule: Rule, url: str) -> tuple[str, object]:
    """The same request about things that are not there."""
    body = json.dumps(rule.body)
    for ours, nobodys in ABSENT.items():
        url, body = url.replace(ours, nobodys), body.replace(ours, nobodys)
    return url, json.loads(body)


def shown(service: Service, method: str, url: str, body: object) -> bool:
    """Lists are up to two seconds old."""
    status, said = ask(service, "admin", method, url, body)
    return status == 200 and any(secret in said for secret in SECRETS)


@pytest.mark.parametrize("path", sorted({route.path for route in DATA_ROUTES}))
def test_a_data_route_is_for_namespaces_of_the_tokens_tenants(
    server: Server, filled: Service, path: str
) -> None:
    before = contents(server, "ours")
    asked = example(DOCUMENT, path, "ours")
    status, said = ask(filled, "theirs", "POST", path, asked)
    assert (status, json.loads(said)["error"]) == (403, "forbidden")
    assert not [secret for secret in SECRETS if secret in said]
    assert ask(filled, "", "POST", path, asked)[0] == 401
    assert contents(server, "ours") == before
    assert ask(filled, "admin", "POST", path, asked)[0] in (200, 409)


def test_lists_are_as_long_as_if_nobody_else_was_there(server: Server, service: Service) -> None:
    lists = [path for method, path in CONTROL if (method, path) in RULES and is_list(method, path)]
    assert len(lists) >= 8
    fill(service, "theirs", "theirs", ("1f" * 16, "2f" * 16, "3f" * 16, "4f" * 16))
    own = keys.tag_bytes(tag_of("theirs")).hex()
    alone: dict[str, Any] = {}

    def settled(path: str) -> bool:
        said = ask(service, "theirs", "GET", path)[1]
        alone[path] = steady(json.loads(said))
        there = own in said or '"theirs"' in said
        return there and not shown(service, "GET", path, None)

    for path in lists:
        eventually(lambda path=path: settled(path))  # type: ignore[misc]  # bound now
    fill(service, "admin", "ours", (PROCESS, STORE, MEDIUM, PAGE), HOST, SERVER)
    for path in lists:
        eventually(lambda path=path: shown(service, "GET", path, None))  # type: ignore[misc]
        assert steady(json.loads(ask(service, "theirs", "GET", path)[1])) == alone[path], path


def test_an_overview_is_of_the_tokens_tenants(filled: Service) -> None:
    eventually(lambda: shown(filled, "GET", "/v1/overview", None))
    status, said = ask(filled, "theirs", "GET", "/v1/overview")
    assert status == 200
    assert '"theirs"' in said
    assert not [secret for secret in SECRETS if secret in said]


def is_list(method: str, path: str) -> bool:
    rule = RULES[method, path]
    return method == "GET" and rule.others is Others.OWN and rule.shows


def steady(said: Any) -> Any:
    """Without what the clock changes."""
    if isinstance(said, dict):
        return {name: steady(value) for name, value in said.items() if name != "seen_s"}
    return [steady(value) for value in said] if isinstance(said, list) else said
