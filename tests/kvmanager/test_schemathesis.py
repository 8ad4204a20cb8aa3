"""Requests made from the service's own document, sensible and not: none makes the service fail."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.isolation_rules import ID
from tests.kvmanager.servers import Server, free_port
from tests.kvmanager.service_documents import namespace, post
from tests.kvmanager.test_isolation import DOCUMENT

schemathesis: Any = pytest.importorskip("schemathesis")

__all__ = ["server_binary"]


def _in_json(document: Any) -> Any:
    """The document without msgpack, whose values are not those of its schemas."""
    if isinstance(document, dict):
        kept = {name: _in_json(value) for name, value in document.items()}
        kept.pop("application/msgpack", None)
        return kept
    return [_in_json(each) for each in document] if isinstance(document, list) else document


SCHEMA = schemathesis.openapi.from_dict(_in_json(DOCUMENT))
TIMEOUT_S = 10
QUICK: dict[str, Any] = {
    "deadline": None,
    "suppress_health_check": list(HealthCheck),
    "phases": [Phase.explicit, Phase.generate],
}
MEMBER = {"process": "a1" * 16, "store": "b2" * 16, "medium": "c3" * 16, "host": "h", "server": "s"}


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service") / "log"


@pytest.fixture(scope="module")
def service(shared_server: Server, log: Path) -> Iterator[Service]:
    """Its loops run all the time, over whatever the requests leave behind."""
    started = Service(
        shared_server.url, "--sweep-every", "0.3", "--settle-every", "0.3", log=log
    ).start()
    asked = {"namespace": namespace("ours"), **MEMBER, "ttl_ms": 600_000}
    assert post(started, "/v1/register", asked)[0] == 200
    yield started
    started.stop()
    assert "Traceback" not in log.read_text()


@pytest.fixture(scope="module")
def astray() -> Iterator[Service]:
    """A service whose Redis is not there."""
    started = Service(f"redis://127.0.0.1:{free_port()}").start()
    yield started
    started.stop()


def try_out(case: Any, service: Service) -> None:
    answer = case.call(base_url=service.url, timeout=TIMEOUT_S)
    assert answer.status_code < 500, answer.text
    if "id" in (case.path_parameters or {}):  # of a namespace that is there
        case.path_parameters["id"] = ID
        answer = case.call(base_url=service.url, timeout=TIMEOUT_S)
        assert answer.status_code < 500, answer.text


@SCHEMA.parametrize()  # type: ignore[untyped-decorator]  # its types are as it likes
@settings(max_examples=3, **QUICK)
def test_no_request_makes_the_service_fail(case: Any, service: Service) -> None:
    try_out(case, service)


@pytest.mark.slow
@SCHEMA.parametrize()  # type: ignore[untyped-decorator]  # its types are as it likes
@settings(max_examples=100, **QUICK)
def test_no_request_of_many_makes_the_service_fail(case: Any, service: Service) -> None:
    try_out(case, service)


@pytest.mark.parametrize(
    "path", [path for path, route in DOCUMENT["paths"].items() if "get" in route]
)
def test_a_sensible_request_without_redis_is_answered_with_503(astray: Service, path: str) -> None:
    named = {"{id}": ID, "{name}": "ours", "/v1/drain": "/v1/drain?host=h"}
    url = path
    for part, value in named.items():
        url = url.replace(part, value)
    url += f"?namespace={ID}" if path == "/v1/events" else ""
    expected = 200 if path in ("/healthz", "/metrics") else 503
    assert astray.get(url)[0] == expected
