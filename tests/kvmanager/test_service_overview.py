"""The overview and the metrics as operators ask for them: of the token's tenants alone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import pytest

from kvmanager import keys
from kvmanager.reports import Hot
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import eventually
from tests.kvmanager.reporters import Redis, Reporter, latencies
from tests.kvmanager.servers import Server, free_port

__all__ = ["server_binary"]

TOKENS = {
    "everything": ("admin", "*"),
    "red": ("admin", "red"),
    "router": ("router", "*"),
}
ENDING = "0123456789abcdef"


@pytest.fixture(scope="module")
def service(shared_server: Server) -> Iterator[Service]:
    lines = [f"{role} {tenants} {name}-{ENDING}" for name, (role, tenants) in TOKENS.items()]
    started = Service(shared_server.url, environment={"KVMANAGER_TOKENS": ";".join(lines)}).start()
    yield started
    started.stop()


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    with Redis(server.url) as made:
        yield made


def _ask(service: Service, token: str, path: str) -> tuple[int, Any]:
    status, body = service.get(path, {"authorization": f"Bearer {token}-{ENDING}"})
    return status, json.loads(body) if path.startswith("/v1") else body.decode()


def _two_tenants(redis: Redis) -> tuple[Reporter, Reporter]:
    pair = Reporter(redis, tenant="red"), Reporter(redis, tenant="blue", kind="3fs")
    for reporter, pages in zip(pair, (10, 70), strict=True):
        reporter.beat()
        counters = {"get.pages": pages, "get.hits": pages - 4, "miss.evicted": 4}
        reporter.report(counters | latencies(reporter.kind, "get", 40, 1000), pages=pages)
    return pair


def test_a_token_is_shown_its_own_tenants_alone(service: Service, redis: Redis) -> None:
    _two_tenants(redis)
    eventually(lambda: len(_ask(service, "everything", "/v1/overview")[1]["tenants"]) == 2, 10)
    status, everything = _ask(service, "everything", "/v1/overview")
    assert (status, everything["tenants"], everything["pages"]["asked"]) == (
        200,
        ["blue", "red"],
        80,
    )
    status, own = _ask(service, "red", "/v1/overview")
    assert (status, own["tenants"], own["namespaces"]) == (200, ["red"], 1)
    assert (own["pages"]["asked"], own["pages"]["misses"]) == (10, {"evicted": 4})
    assert {one["kind"] for one in own["latency"]} == {"nvme"}
    assert [one["tenant"] for one in own["space"]] == ["red"]
    assert {one["tenant"] for one in own["liveness"]["processes"]} == {"red"}
    assert _ask(service, "red", "/v1/overview?tenant=red")[1]["pages"]["asked"] == 10
    assert _ask(service, "everything", "/v1/overview?tenant=blue")[1]["pages"]["asked"] == 70
    assert _ask(service, "red", "/v1/overview?tenant=blue")[0] == 403
    assert _ask(service, "red", "/v1/overview?tenant=unheard")[0] == 403
    assert _ask(service, "router", "/v1/overview")[0] == 403
    assert service.get("/v1/overview")[0] == 401


def test_metrics_hold_the_sums_of_the_tokens_tenants(service: Service, redis: Redis) -> None:
    _two_tenants(redis)
    line = 'kvmanager_asked_pages_total{tenant="blue"} 70.0'
    eventually(lambda: line in _ask(service, "everything", "/metrics")[1], 15)
    text = _ask(service, "everything", "/metrics")[1]
    assert 'kvmanager_missed_pages_total{reason="evicted",tenant="red"} 4.0' in text
    assert 'kvmanager_processes{state="alive"} 2.0' in text
    assert 'kvmanager_loop_failures_total{loop="sampling"} 0.0' in text
    assert "kvmanager_look_age_seconds" in text
    own = _ask(service, "red", "/metrics")[1]
    assert 'kvmanager_asked_pages_total{tenant="red"} 10.0' in own
    assert "blue" not in own
    assert 'kind="3fs"' not in own
    assert 'kvmanager_processes{state="alive"} 1.0' in own
    assert "left_out" in text
    for told in ("left_out", "requests_total", "request_seconds", "loop_failures"):
        assert f"kvmanager_{told}" not in own


def test_samples_and_popular_prefixes_come_by_themselves(
    service: Service, redis: Redis, server: Server
) -> None:
    digest = os.urandom(16)
    reporter = Reporter(redis, tenant="red")
    reporter.beat()
    reporter.report({"get.pages": 5}, hot=(Hot(digest, 3, 9),))

    def come() -> bool:
        found = _ask(service, "red", "/v1/overview")[1]
        return bool(found["curve"]) and bool(found["hottest"])

    eventually(come, 25)
    reporter.report({"get.pages": 7})
    found = _ask(service, "red", "/v1/overview")[1]
    assert found["covered_s"] is None  # an hour was asked for
    eventually(lambda: _ask(service, "red", "/v1/overview")[1]["pages"]["asked"] == 12, 10)
    assert found["hottest"][0]["digest"] == digest.hex()
    assert (found["hottest"][0]["loads"], found["hottest"][0]["pages"]) == (3.0, 9)
    with server.client() as client:
        assert client.xlen(b"h%b10" % keys.tenant_tag("red")) >= 1


def test_a_quota_and_a_check_are_shown(service: Service, redis: Redis, server: Server) -> None:
    import msgpack

    reporter = Reporter(redis, tenant="red")
    reporter.beat()
    found = {"time_s": 5.0, "clean": False, "found": {"foreign": 2}, "repaired": 1}
    with server.client() as client:
        client.hset(b"u" + keys.tenant_tag("red"), "quota_bytes", 1 << 40)
        client.set(b"f" + reporter.tag, msgpack.packb(found))

    def shown() -> bool:
        overview = _ask(service, "red", "/v1/overview")[1]
        return (
            bool(overview["integrity"]["fsck"]) and overview["space"][0]["quota_bytes"] == 1 << 40
        )

    eventually(shown, 10)


def test_a_namespace_that_is_broken_hides_no_other(
    service: Service, redis: Redis, server: Server
) -> None:
    _, broken = _two_tenants(redis)
    with server.client() as client:
        client.delete(b"t" + broken.tag)
        client.set(b"t" + broken.tag, "no hash")

    def shown() -> bool:
        status, found = _ask(service, "everything", "/v1/overview")
        return status == 200 and found["tenants"] == ["red"]

    eventually(shown, 10)


@pytest.mark.parametrize(
    "query", ["window_s=0", "window_s=59", "window_s=1209601", "window_s=x", f"tenant={'t' * 256}"]
)
def test_a_question_without_sense_is_refused(service: Service, server: Server, query: str) -> None:
    assert _ask(service, "everything", f"/v1/overview?{query}")[0] == 422


def test_without_redis_the_overview_says_so_and_the_page_is_there() -> None:
    lonely = Service(f"redis://127.0.0.1:{free_port()}").start()
    try:
        status, body = lonely.get("/v1/overview")
        assert (status, json.loads(body)["error"]) == (503, "unavailable")
        assert lonely.get("/")[0] == 200
        assert b"kvmanager_redis_up 0.0" in lonely.get("/metrics")[1]
    finally:
        lonely.stop()
