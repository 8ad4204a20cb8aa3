"""What is no answer of the service is an error of the registry, whatever its bytes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends.errors import ConfigError, RegistryError, RegistryRefused, RegistryUnavailable
from hicache_backends.outcomes import Reason
from kvmanager.http import message as http_message
from kvmanager.http.endpoint import HttpEndpoint
from kvmanager.http.message import MAX_BODY_BYTES, MAX_HEAD_BYTES, Response
from kvmanager.http.wire import HttpWire
from kvmanager.replies import EpochMoved, Forgotten

ABSENT = Reason.REGISTRY_REBUILDING


def response(body: bytes, status: int = 200) -> bytes:
    head = b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(body))
    return head + body


def test_an_answer_is_whole_only_with_its_last_byte() -> None:
    raw = response(msgpack.packb({"epoch": 3}))
    for cut in range(1, len(raw)):
        taken = Response()
        assert not taken.take(raw[:cut])
        assert taken.take(raw[cut:])
        assert http_message.parse(bytes(taken.raw)) == {"epoch": 3}


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"+PONG\r\n\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 2x0 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (MAX_BODY_BYTES + 1),
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nxy",
        b"H" * (MAX_HEAD_BYTES + 1),
    ],
)
def test_what_is_no_answer_ends_the_connection(raw: bytes) -> None:
    with pytest.raises(ConnectionResetError):
        Response().take(raw)


@given(st.binary(max_size=200))
def test_any_bytes_are_an_answer_or_the_end_of_the_connection(raw: bytes) -> None:
    with contextlib.suppress(ConnectionResetError, RegistryError):
        taken = Response()
        if taken.take(raw):
            http_message.parse(bytes(taken.raw))


@pytest.mark.parametrize(
    ("status", "document", "error"),
    [
        (200, [1], RegistryRefused),
        (401, {"error": "unknown_token", "detail": "no"}, RegistryRefused),
        (404, None, RegistryRefused),
        (409, {"error": "refused", "detail": "schema 9"}, RegistryRefused),
        (422, {"error": "invalid", "detail": "no"}, RegistryRefused),
        (500, None, RegistryUnavailable),
        (502, {"error": "refused", "detail": "OOM"}, RegistryRefused),
        (502, None, RegistryUnavailable),
        (503, {"error": "unavailable", "detail": 5}, RegistryUnavailable),
    ],
)
def test_each_status_is_an_error_of_the_registry(
    status: int, document: object, error: type[RegistryError]
) -> None:
    with pytest.raises(error):
        http_message.parse(response(msgpack.packb(document), status))


def test_an_older_epoch_and_a_forgotten_namespace_are_told_apart() -> None:
    moved = {"error": "stale_epoch", "detail": "", "epoch": 7}
    with pytest.raises(EpochMoved) as error:
        HttpWire.read_done(http_message.parse(response(msgpack.packb(moved), 409)))
    assert error.value.epoch == 7
    gone = {"error": "forgotten", "detail": "", "epoch": None}
    with pytest.raises(Forgotten):
        HttpWire.read_claims(http_message.parse(response(msgpack.packb(gone), 409)), 1)


READERS: list[Callable[[Any], object]] = [
    lambda reply: HttpWire.read_lookup(reply, 1, ABSENT),
    lambda reply: HttpWire.read_claims(reply, 1),
    lambda reply: HttpWire.read_mutation(reply, 1),
    HttpWire.read_epoch,
    HttpWire.read_beat,
    HttpWire.read_done,
]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.binary(max_size=60) | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["digest", "location", "epoch"]), inner, max_size=3)
    ),
    max_leaves=6,
)
NAMES = ("locations", "reasons", "claims", "last", "applied", "results", "epoch", "sequence")
DOCUMENTS = st.dictionaries(
    st.sampled_from([*NAMES, "bad", "mode", "clear", "returned", "now", "error"]), VALUES
)


@given(DOCUMENTS | VALUES)
def test_any_document_is_read_or_refused(document: object) -> None:
    for read in READERS:
        with contextlib.suppress(RegistryError):
            read(document)


@pytest.mark.parametrize(
    "document",
    [
        {"locations": [b"x"], "reasons": ["checksum"]},
        {"locations": [b""], "reasons": [None]},
        {"locations": [b"x" * 49], "reasons": [None]},
        {"locations": [b"x", b"x"], "reasons": [None, None]},
        {"locations": ["x"], "reasons": [None]},
        {"locations": [b""], "reasons": ["no such reason"]},
    ],
)
def test_a_lookup_that_contradicts_itself_is_refused(document: object) -> None:
    with pytest.raises(RegistryRefused):
        HttpWire.read_lookup(document, 1, ABSENT)


def test_a_page_that_is_nowhere_has_the_reason_that_the_session_knows() -> None:
    found = HttpWire.read_lookup({"locations": [b""], "reasons": ["never_written"]}, 1, ABSENT)
    assert found.reasons == [ABSENT]


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http://h:port",
        "http://h:99999",
        "http://h/path",
        "http://h?x=1",
        "http://h,",
        "http://h,redis://h",
        "https://user:hunter2@h",
        "http://a,http://:hunter2@b",
        "http://a b",
        "http://[::1",
    ],
)
def test_what_is_no_address_of_a_service_is_told_without_its_secrets(url: str) -> None:
    with pytest.raises(ConfigError, match="endpoint") as error:
        HttpEndpoint.parse(url)
    assert "hunter2" not in str(error.value)
    assert "KVMANAGER_TOKEN" in str(error.value) or "http://host:port" in str(error.value)


def test_addresses_have_the_ports_of_their_schemes() -> None:
    endpoint = HttpEndpoint.parse("http://a, https://b/ ,http://[::1]:81")
    assert [(a.host, a.port, a.tls) for a in endpoint.addresses] == [
        ("a", 80, False),
        ("b", 443, True),
        ("::1", 81, False),
    ]
    assert endpoint.headers(endpoint.addresses[2]) == b"host: [::1]:81\r\n"


def test_a_token_is_sent_and_never_shown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "token").write_text("hunter2-hunter2\n")
    monkeypatch.setenv("KVMANAGER_TOKEN_FILE", str(tmp_path / "token"))
    endpoint = HttpEndpoint.parse("http://far.example:8080")
    assert b"authorization: Bearer hunter2-hunter2\r\n" in endpoint.headers(endpoint.first)
    assert "hunter2" not in repr(endpoint) + endpoint.shown
    (warning,) = caplog.messages
    assert "https://" in warning
    assert "hunter2" not in warning


@pytest.mark.parametrize("token", ["two words", "line\r\nx: y", "ümlaut"])
def test_a_token_that_would_break_a_request_is_refused(token: str) -> None:
    with pytest.raises(ConfigError, match="token") as error:
        HttpEndpoint.parse("http://h", token)
    assert token not in str(error.value)
