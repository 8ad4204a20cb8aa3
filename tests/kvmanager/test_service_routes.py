"""The service's routes, as any HTTP client meets them: documents, limits, hostile requests."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmanager.service.codec import MAX_BODY_BYTES
from tests.kvmanager.http_fixtures import cluster, server_binary, service
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, digests, eventually
from tests.kvmanager.servers import Server, free_port
from tests.kvmanager.service_documents import (
    JSON,
    MSGPACK,
    data_paths,
    example,
    namespace,
    openapi,
    post,
    post_packed,
)

__all__ = ["cluster", "server_binary", "service"]

ROUTES = (
    "abort",
    "claim",
    "clear",
    "figures",
    "heartbeat",
    "leave",
    "lookup",
    "publish",
    "register",
)
PAGE = "22" * 16
SLOW = (
    b"POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    b"content-length: 10\r\n\r\n{"
)
OWNER = {"process": "aa" * 16, "store": "bb" * 16, "medium": "cc" * 16}


@pytest.fixture
def registered(server: Server, service: Service) -> Service:
    """A process of plain JSON is registered."""
    asked = {"namespace": namespace(), **OWNER, "host": "h", "server": "s", "ttl_ms": 60_000}
    status, answer = post(service, "/v1/register", asked)
    assert (status, answer["epoch"], answer["returned"]) == (200, 0, False)
    return service


def test_a_page_is_claimed_published_found_and_removed_in_plain_json(registered: Service) -> None:
    pages = {"namespace": namespace(), "epoch": 0, "digests": [PAGE]}
    medium, token = OWNER["medium"], "01" * 8
    claim = {**pages, "medium": medium, "token": token, "ttl_ms": 9000}
    assert post(registered, "/v1/claim", claim) == (200, {"claims": "00"})
    assert post(registered, "/v1/claim", claim) == (200, {"claims": "00"})  # the same one, renewed
    other = {**claim, "token": "02" * 8}
    assert post(registered, "/v1/claim", other) == (200, {"claims": "02"})
    entry = {**pages, "store": OWNER["store"], "medium": medium, "parents": ["00" * 16]}
    entry["locations"] = ["0102"]
    published = post(registered, "/v1/publish", {**entry, "sequence": 1, "claimed": True})
    assert published == (200, {"last": -1, "applied": True, "results": "00"})
    lookup = {**pages, "media": [medium]}
    found = (200, {"locations": ["0102"], "reasons": [None], "counted": True})
    assert post(registered, "/v1/lookup", lookup) == found
    removed = post(registered, "/v1/remove", {**entry, "sequence": 2})
    assert removed[1]["results"] == "00"
    gone = (200, {"locations": [""], "reasons": ["never_written"], "counted": True})
    assert post(registered, "/v1/lookup", lookup) == gone


def test_an_older_epoch_is_told_the_present_one(registered: Service) -> None:
    assert post(registered, "/v1/clear", {"namespace": namespace()}) == (200, {"epoch": 1})
    lookup = {"namespace": namespace(), "epoch": 0, "digests": [PAGE], "media": []}
    status, problem = post(registered, "/v1/lookup", lookup)
    assert (status, problem["error"], problem["epoch"]) == (409, "stale_epoch", 1)
    unknown = {**lookup, "namespace": {**namespace(), "model": "another"}}
    status, problem = post(registered, "/v1/lookup", unknown)
    assert (status, problem["error"]) == (409, "forgotten")


def test_fields_and_encoding_name_the_same_namespace(service: Service, cluster: Cluster) -> None:
    store = cluster.store()
    keys = digests(2)
    store.write(store.chain(keys))
    asked = {"epoch": 0, "digests": keys, "media": [cluster.medium]}
    for written in (NAMESPACE.encode(), namespace()):
        status, answer = post_packed(service, "/v1/lookup", {**asked, "namespace": written})
        assert status == 200
        assert answer["locations"] == [store.pages[key].location for key in keys]


def test_the_document_describes_every_data_route_and_its_own_examples_are_taken(
    service: Service,
) -> None:
    document = openapi(service)
    paths = data_paths(document)
    assert {f"/v1/{name}" for name in (*ROUTES, "remove", "report_bad")} == set(paths)
    for path in paths:
        status, answer = post(service, path, example(document, path, "default"))
        assert status in (200, 409), (path, answer)
        assert service.get(path)[0] == 405


def test_a_client_of_the_next_version_may_say_more(registered: Service) -> None:
    status, answer = post(registered, "/v1/lookup", {**LOOKUP, "of_the_next_version": 1})
    assert (status, answer["locations"]) == (200, [""])


def test_health_is_answered(service: Service) -> None:
    assert service.get("/healthz") == (200, b'{"status":"ok"}')
    assert service.get("/readyz") == (200, b'{"status":"ok"}')


def test_requests_are_counted_by_route_and_class_of_status(registered: Service) -> None:
    post(registered, "/v1/leave", {})
    text = registered.get("/metrics")[1].decode()
    assert 'kvmanager_requests_total{route="leave",status="4xx"}' in text
    assert 'kvmanager_request_seconds_bucket{le="0.001",route="register"}' in text
    assert "kvmanager_redis_up 1.0" in text


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({}, b"{}", 415),
        ({"content-type": "text/plain"}, b"{}", 415),
        (JSON, b"", 400),
        (JSON, b"{", 400),
        (JSON, b"[" * 100_000, 400),
        (JSON, b'{"namespace": "\\ud800"}', 400),
        (JSON, b"\xff", 400),
        (JSON, b"null", 422),
        (JSON, b"{}", 422),
        (MSGPACK, b"", 400),
        (MSGPACK, b"\x93\x01", 400),
        (MSGPACK, b"\x91" * 100_000, 400),
        (MSGPACK, b"\xdf\xff\xff\xff\xff", 400),
        (MSGPACK, b"\xc1", 400),
        (MSGPACK, b"\x80\x80", 400),
        (MSGPACK, b"\xd6\xff\x00\x00\x00\x00", 422),
        (MSGPACK, b"\x81\x91\x01\x02", 400),
        ({**JSON, "deadline-ms": "0"}, b"{}", 400),
        ({**JSON, "deadline-ms": "soon"}, b"{}", 400),
        ({**JSON, "deadline-ms": "9" * 400}, b"{}", 400),
        (MSGPACK, b"x" * (MAX_BODY_BYTES + 1), 413),
        ({**JSON, "host": "evil.example"}, b"{}", 403),
    ],
)
def test_what_is_no_request_is_refused(
    service: Service, headers: dict[str, str], body: bytes, status: int
) -> None:
    answered, said = service.request("POST", "/v1/lookup", body, headers)
    assert answered == status
    assert b"error" in said


LOOKUP = {"namespace": namespace(), "epoch": 0, "digests": [PAGE], "media": ["cc" * 16]}


@pytest.mark.parametrize(
    "change",
    [
        {"epoch": -1},
        {"epoch": 1 << 60},
        {"epoch": 1.5},
        {"epoch": True},
        {"digests": [PAGE] * 1025},
        {"digests": [PAGE + "00"]},
        {"digests": ["zz" * 16]},
        {"digests": [PAGE] * 1024, "media": ["cc" * 16] * 3},
        {"media": [""]},
        {"touch_interval_ms": 0},
        {"prefix": 1},
        {"namespace": {**namespace(), "page_bytes": 0}},
        {"namespace": {**namespace(), "layers": [2, 1]}},
        {"namespace": {**namespace(), "layers": [1]}},
        {"namespace": {**namespace(), "tenant": 5}},
        {"namespace": {**namespace(), "salt": "s" * 5000}},
        {"namespace": "00"},
        {"namespace": msgpack.packb(["hicache-namespace-1", 5]).hex()},
        {"namespace": NAMESPACE.encode().replace(b"default", b"defualt").hex() + "00"},
    ],
)
def test_a_field_with_no_such_value_is_refused(service: Service, change: dict[str, object]) -> None:
    status, problem = post(service, "/v1/lookup", {**LOOKUP, **change})
    assert (status, problem["error"]) == (422, "invalid")


ANY = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 64) - 1)
    | st.floats()
    | st.binary(max_size=40)
    | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@settings(max_examples=40)
@given(data=st.data(), value=ANY)
def test_a_hostile_field_is_never_an_error_of_the_service(
    service: Service, data: st.DataObject, value: object
) -> None:
    document = openapi(service)
    path = data.draw(st.sampled_from(data_paths(document)))
    asked = example(document, path, "default")
    asked[data.draw(st.sampled_from(sorted(asked)))] = value
    status, _ = post_packed(service, path, asked)
    assert 200 <= status < 500


@pytest.mark.parametrize("encoding", ["chunked", "announced"])
def test_a_body_that_is_too_long_is_not_kept(service: Service, encoding: str) -> None:
    head = b"POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as stream:
        if encoding == "announced":
            stream.sendall(head + b"content-length: 999999999999\r\n\r\n")
        else:
            stream.sendall(head + b"transfer-encoding: chunked\r\n\r\n")
            chunk = b"10000\r\n" + bytes(0x10000) + b"\r\n"
            for _ in range(MAX_BODY_BYTES // 0x10000 + 1):
                stream.sendall(chunk)
        assert stream.recv(65_536).startswith(b"HTTP/1.1 413 ")


def test_a_request_that_does_not_arrive_is_given_up(service: Service) -> None:
    began = time.monotonic()
    address = ("127.0.0.1", service.port)
    with ExitStack() as stack:
        streams = [stack.enter_context(socket.create_connection(address, 20)) for _ in range(3)]
        for stream, part in zip(streams, (0, 20, len(SLOW)), strict=True):
            stream.sendall(SLOW[:part])  # nothing, half a head, half a body
        assert service.get("/healthz")[0] == 200
        for stream in streams:
            assert stream.recv(65_536) == b""
    assert 1 < time.monotonic() - began < 15


@pytest.fixture
def lonely() -> Iterator[Service]:
    """A service whose Redis is not there."""
    started = Service(f"redis://127.0.0.1:{free_port()}").start()
    yield started
    started.stop()


def test_without_redis_the_process_lives_and_is_not_ready(lonely: Service) -> None:
    assert lonely.get("/healthz")[0] == 200
    assert lonely.get("/readyz")[0] == 503
    status, problem = post(lonely, "/v1/lookup", LOOKUP)
    assert (status, problem["error"]) == (503, "unavailable")
    assert "kvmanager_redis_up 0.0" in lonely.get("/metrics")[1].decode()


def test_a_redis_that_was_away_is_used_again(own_server: Server) -> None:
    service = Service(own_server.url).start()
    try:
        own_server.kill()
        assert service.get("/readyz")[0] == 503
        own_server.start()
        eventually(lambda: service.get("/readyz")[0] == 200)
    finally:
        service.stop()


def test_an_impatient_caller_does_not_make_redis_count_as_down(own_server: Server) -> None:
    service = Service(own_server.url).start()
    try:
        for _ in range(5):
            status, _ = service.request(
                "POST", "/v1/lookup", json.dumps(LOOKUP).encode(), {**JSON, "deadline-ms": "1"}
            )
            assert status == 409  # an answer: nobody has registered
        assert service.get("/readyz")[0] == 200
    finally:
        service.stop()


def test_an_answer_comes_in_one_piece(service: Service) -> None:
    request = b"POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
    with socket.create_connection(("127.0.0.1", service.port), timeout=10) as stream:
        for _ in range(20):
            stream.sendall(request)
            assert b"content_type" in stream.recv(65_536)
