"""What operators write wrong: nothing is set by it."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kvmanager.http_fixtures import cluster, server_binary, service
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import Cluster, digests
from tests.kvmanager.test_control import OURS, ask, got

__all__ = ["cluster", "server_binary", "service"]

NAMESPACE = f"/v1/namespaces/{OURS}"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/tenants/default", {"quota": "1GiB"}),
        ("PATCH", NAMESPACE, {"modes": "off"}),
        ("PATCH", NAMESPACE, {"mode": "off", "ttl": 1}),
        ("PUT", f"{NAMESPACE}/pins", {"hashes": ["a"], "ttl_s": 60, "for_s": 60}),
        ("DELETE", f"{NAMESPACE}/pins", {"hash": ["a"]}),
        ("PUT", "/v1/processes/{process}/mode", {"mode": "off", "for": "1h"}),
        ("POST", "/v1/drain", {"host": "host", "wait": True}),
        ("POST", "/v1/locate", {"hashes": ["a"], "model": "model", "pool": ["kv"]}),
        ("POST", "/v1/explain", {"hashes": ["a"], "namespace": OURS, "medium": "x"}),
    ],
)
def test_a_field_that_is_misspelt_is_refused(
    service: Service, cluster: Cluster, method: str, path: str, body: dict[str, Any]
) -> None:
    store = cluster.store()
    store.write(store.chain(digests(2)))
    assert ask(service, "PUT", "/v1/tenants/default", {"quota_bytes": 1 << 40})[0] == 200
    status, said = ask(service, method, path.format(process=store.member.process.hex()), body)
    assert (status, said["error"]) == (422, "invalid"), said
    assert got(service, "/v1/tenants/default")["quota_bytes"] == 1 << 40
    known = got(service, NAMESPACE)
    assert (known["mode"], known["ttl_ms"], known["pins"]) == (None, None, 0)
    status, said = ask(service, "GET", f"/v1/drain?process={store.member.process.hex()}")
    assert status == 404 or said["processes"][0]["ordered"] is None


@pytest.mark.parametrize("wrong", ["zz", "0", "00" * 8, "AB" * 9, "%20", "00" * 5000])
def test_an_id_that_cannot_be_one_is_that_of_nothing(service: Service, wrong: str) -> None:
    for method, path, body in (
        ("GET", f"/v1/namespaces/{wrong}", None),
        ("POST", f"/v1/namespaces/{wrong}/clear", None),
        ("GET", f"/v1/namespaces/{wrong}/pins", None),
        ("PUT", f"/v1/processes/{wrong}/mode", {"mode": "off"}),
    ):
        status, said = ask(service, method, path, body)
        assert (status, said["error"]) == (404, "not_found"), said
