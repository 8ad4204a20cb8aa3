"""What operators ask the service, and what comes of it."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest

from hicache_backends.identity import page_digests
from kvmanager.control import namespaces
from kvmanager.control.pins import MAX_PINS
from kvmanager.model import Orders, Removal
from tests.kvmanager.http_fixtures import cluster, server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, digests, eventually, soon
from tests.kvmanager.servers import Server
from tests.kvmanager.test_orders import TAG

__all__ = ["cluster", "server_binary"]

OURS = namespaces.id_of(TAG)
OTHER = dataclasses.replace(NAMESPACE, model="other", tenant="a/b c")


@pytest.fixture(scope="module")
def service(shared_server: Server) -> Iterator[Service]:
    started = Service(shared_server.url, "--settle-every", "0.2").start()
    yield started
    started.stop()


def ask(service: Service, method: str, path: str, asked: object = None) -> tuple[int, Any]:
    body = b"" if asked is None else json.dumps(asked).encode()
    status, said = service.request(method, path, body, {"content-type": "application/json"})
    return status, json.loads(said)


def got(service: Service, path: str) -> Any:
    status, said = ask(service, "GET", path)
    assert status == 200, said
    return said


def listed(service: Service, path: str, rows: str, limit: int = 2) -> list[Any]:
    """Of all pages of a list."""
    joint = "&" if "?" in path else "?"
    found, after = [], ""
    while True:
        said = got(service, f"{path}{joint}limit={limit}{after}")
        assert len(said[rows]) <= limit
        found += said[rows]
        if said["next"] is None:
            return found
        after = f"&cursor={quote(said['next'])}"


def soon_listed(service: Service, path: str, rows: str, count: int) -> list[Any]:
    """A list is up to two seconds old."""
    eventually(lambda: len(listed(service, path, rows)) == count)
    return listed(service, path, rows)


def test_a_namespace_is_described_set_and_cleared(service: Service, cluster: Cluster) -> None:
    store = cluster.store()
    store.write(store.chain(digests(7)))
    store.settled()
    path = f"/v1/namespaces/{OURS}"
    said = got(service, path)
    assert (said["id"], said["tenant"], said["epoch"]) == (OURS, "default", 0)
    assert (said["pages"], said["bytes"]) == (7, 7 * NAMESPACE.page_bytes)
    assert said["identity"]["kv_dtype"] == "bf16"
    (medium,) = said["media"]
    assert (medium["medium"], medium["pages"]) == (cluster.medium.hex(), 7)
    assert ask(service, "PATCH", path, {"mode": "read", "ttl_ms": 9000})[1]["mode"] == "read"
    eventually(lambda: (store.orders[-1].mode, store.orders[-1].ttl_ms) == ("read", 9000))
    left = ask(service, "PATCH", path, {"mode": None})[1]
    assert (left["mode"], left["ttl_ms"]) == (None, 9000)
    assert ask(service, "PATCH", path, {"mode": "loud"})[0] == 422
    assert ask(service, "POST", f"{path}/clear") == (200, {"epoch": 1})
    eventually(lambda: store.orders[-1].epoch == 1)
    assert got(service, path)["pages"] == 0


def test_lists_are_given_a_few_rows_at_a_time(service: Service, cluster: Cluster) -> None:
    stores = [cluster.store(namespace=name) for name in (NAMESPACE, NAMESPACE, OTHER)]
    stores.append(cluster.store(medium=os.urandom(16), shared=False))
    found = soon_listed(service, "/v1/namespaces", "namespaces", 2)
    assert [one["id"] for one in found] == sorted(one["id"] for one in found)
    processes = soon_listed(service, "/v1/processes", "processes", 4)
    assert {one["process"] for one in processes} == {s.member.process.hex() for s in stores}
    assert all(one["alive"] and one["host"] == "host" for one in processes)
    assert {one["store"] for one in listed(service, "/v1/stores", "stores")} == {
        store.member.store.hex() for store in stores
    }
    media = listed(service, "/v1/media", "media", 1)
    assert {one["medium"]: one["shared"] for one in media} == {
        cluster.medium.hex(): True,
        stores[3].member.medium.hex(): False,
    }
    for kind in ("servers", "hosts"):
        (group,) = listed(service, f"/v1/{kind}", kind)
        assert (group["processes"], group["alive"]) == (4, 4)
    assert listed(service, "/v1/processes?host=nobody", "processes") == []
    assert listed(service, "/v1/processes?alive=false", "processes") == []
    assert [one["name"] for one in listed(service, "/v1/stats", "sums", 1)] == ["a/b c", "default"]
    assert len(listed(service, "/v1/stats?by=namespace", "sums")) == 2
    for path in ("/v1/namespaces?limit=0", "/v1/stats?by=host", "/v1/processes?limit=1001"):
        assert ask(service, "GET", path)[0] == 422


def test_a_pinned_page_is_kept_until_its_pin_ends(service: Service, cluster: Cluster) -> None:
    store = cluster.store()
    hashes = ["a", "b", "c"]
    pages = page_digests(NAMESPACE.fingerprint, hashes)
    entries = [store.entry(page) for page in pages]
    store.write(entries)
    path = f"/v1/namespaces/{OURS}/pins"
    asked = {"hashes": ["a"], "digests": [pages[1].hex()], "ttl_s": 60}
    assert ask(service, "PUT", path, asked) == (200, {"pins": 2})
    assert {pin["digest"] for pin in listed(service, path, "pins", 1)} == {
        page.hex() for page in pages[:2]
    }
    ages = [0, 0, 0]
    removed = store.registry.remove(entries, soon(), touched_ms=ages)
    assert removed == [Removal.TOUCHED, Removal.TOUCHED, Removal.REMOVED]
    assert ask(service, "DELETE", path, {"digests": []}) == (200, {"ended": 0})
    assert ask(service, "DELETE", path, {"hashes": ["a"]}) == (200, {"ended": 1})
    assert ask(service, "DELETE", path) == (200, {"ended": 1})
    removed = store.registry.remove(entries[:2], soon(), touched_ms=ages[:2])
    assert removed == [Removal.REMOVED] * 2
    wrong_ones: list[Any] = [{"hashes": ["a"]}, {"ttl_s": 0}, {"digests": ["x"], "ttl_s": 1}, []]
    for wrong in wrong_ones:
        assert ask(service, "PUT", path, wrong)[0] == 422


def test_pins_are_bounded(service: Service, server: Server, cluster: Cluster) -> None:
    cluster.store()
    with server.client() as client:
        pinned = {n.to_bytes(16, "big"): b"99999999999" for n in range(MAX_PINS)}
        client.hset(b"y" + TAG, mapping=pinned)
        path = f"/v1/namespaces/{OURS}/pins"
        asked = {"digests": ["00" * 16], "ttl_s": 60}
        assert ask(service, "PUT", path, asked) == (200, {"pins": MAX_PINS})
        status, problem = ask(service, "PUT", path, {"digests": ["ff" * 16], "ttl_s": 60})
        assert (status, problem["error"]) == (409, "too_many")
        assert client.hlen(b"y" + TAG) == MAX_PINS


def test_a_tenants_settings_are_in_force_soon_and_end_with_them(
    service: Service, cluster: Cluster
) -> None:
    store = cluster.store(namespace=OTHER)
    store.write(store.chain(digests(10)))
    path = f"/v1/tenants/{quote('a/b c', safe='')}"
    eventually(lambda: ask(service, "GET", path)[0] == 200)
    settings = {"quota_bytes": 4096, "ttl_ms": 60_000, "mode": "read"}
    status, said = ask(service, "PUT", path, settings)
    assert status == 200
    assert {name: said[name] for name in settings} == settings
    assert (said["tenant"], said["namespaces"]) == ("a/b c", 1)
    eventually(lambda: store.orders[-1].mode == "read")
    eventually(lambda: store.orders[-1].ttl_ms == 60_000)
    eventually(lambda: store.orders[-1].limit_bytes == 4096)
    eventually(lambda: got(service, path)["days_to_full"] == 0)
    eventually(lambda: got(service, path)["orphan_bytes"] == 0)
    assert [one["tenant"] for one in listed(service, "/v1/tenants", "tenants", 1)] == ["a/b c"]
    assert ask(service, "DELETE", path) == (200, {})
    eventually(lambda: store.orders[-1] == Orders(0))
    assert ask(service, "GET", "/v1/tenants/nobody")[0] == 404
    assert ask(service, "PUT", path, {"quota_bytes": -1})[0] == 422


def test_a_mode_is_ordered_of_one_process(service: Service, cluster: Cluster) -> None:
    store, other = cluster.store(), cluster.store()
    name = store.member.process.hex()
    eventually(lambda: ask(service, "PUT", f"/v1/processes/{name}/mode", {"mode": "off"})[0] == 200)
    eventually(lambda: store.orders[-1].mode == "off")
    assert other.orders[-1].mode is None
    view = next(p for p in listed(service, "/v1/processes", "processes") if p["process"] == name)
    assert view["ordered"] == "off"
    assert ask(service, "PUT", f"/v1/processes/{name}/mode", {"mode": None})[0] == 200
    eventually(lambda: store.orders[-1].mode is None)
    assert ask(service, "PUT", f"/v1/processes/{'00' * 16}/mode", {"mode": None})[0] == 404


@pytest.mark.parametrize("by", ["process", "server", "host"])
def test_a_drain_waits_until_all_have_obeyed_and_written_their_pages(
    service: Service, cluster: Cluster, by: str
) -> None:
    store = cluster.store()
    bystander = cluster.store(namespace=OTHER) if by == "process" else None
    pages = digests(3)
    token, _ = store.registry.claim(pages, soon(60_000))
    named = {"process": store.member.process.hex(), "server": "server", "host": "host"}[by]
    path = f"/v1/drain?{by}={named}"
    eventually(lambda: ask(service, "GET", path)[0] == 200)
    status, said = ask(service, "POST", "/v1/drain", {by: named})
    assert (status, said["drained"], said["waiting"]) == (200, False, 1)
    eventually(lambda: only(service, path)["mode"] == "read")
    assert store.orders[-1].mode == "read"
    assert (only(service, path)["claims"], only(service, path)["drained"]) == (3, False)
    store.write(store.chain(pages[:2]), token)
    store.registry.abort(pages[2:], token, soon())
    eventually(lambda: bool(got(service, path)["drained"]))
    assert store.lookup(pages[:2]).prefix == 2, "it is still read from"
    if bystander:
        assert bystander.orders[-1].mode is None
    assert ask(service, "DELETE", path)[0] == 200
    eventually(lambda: store.orders[-1].mode is None)
    eventually(lambda: not got(service, path)["drained"])


def only(service: Service, path: str) -> Any:
    (one,) = got(service, path)["processes"]
    return one


@pytest.mark.parametrize("asked", [{}, {"host": "a", "server": "b"}, {"process": "x"}])
def test_a_drain_is_of_one_process_server_or_host(service: Service, asked: dict[str, str]) -> None:
    assert ask(service, "POST", "/v1/drain", asked)[0] == 422
    query = "&".join(f"{name}={value}" for name, value in asked.items())
    assert ask(service, "DELETE", f"/v1/drain?{query}")[0] == 422


def test_a_drain_leaves_what_was_switched_off(service: Service, cluster: Cluster) -> None:
    store = cluster.store()
    name = store.member.process.hex()
    eventually(lambda: ask(service, "PUT", f"/v1/processes/{name}/mode", {"mode": "off"})[0] == 200)
    assert ask(service, "POST", "/v1/drain", {"process": name})[0] == 200
    eventually(lambda: store.orders[-1].mode == "off")
    assert ask(service, "DELETE", f"/v1/drain?process={name}")[0] == 200
    eventually(lambda: only(service, f"/v1/drain?process={name}")["mode"] == "off")


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[" * 100_000, b"NaN", b'{"mode": NaN}', b'"\\ud800"', b"\xff", b'{"mode":1}'],
)
def test_a_body_that_means_nothing_is_a_problem_and_no_failure(
    service: Service, cluster: Cluster, body: bytes
) -> None:
    cluster.store()
    kind = {"content-type": "application/json"}
    status, said = service.request("PATCH", f"/v1/namespaces/{OURS}", body, kind)
    assert status in (400, 422), said
    assert json.loads(said)["error"] in ("invalid", "not_served")


def test_a_body_that_is_too_long_is_not_read(service: Service) -> None:
    body = b'{"mode": "read", "x": "' + b"x" * (600 << 10) + b'"}'
    kind = {"content-type": "application/json"}
    assert service.request("PATCH", f"/v1/namespaces/{OURS}", body, kind)[0] == 413
