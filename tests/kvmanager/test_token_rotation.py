"""Tokens are given out and taken back while a service runs."""

from __future__ import annotations

import http.client
import os
import signal
from pathlib import Path

import pytest

from hicache_backends.errors import ConfigError
from kvmanager import keys
from kvmanager.control.namespaces import id_of
from kvmanager.service import access as access_module
from kvmanager.service.access import Access, Role, Unknown, new_token, read_tokens, token_line
from kvmanager.service.serving import Certificate
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, digests, eventually
from tests.kvmanager.servers import Server
from tests.kvmanager.test_service_access import certificate

__all__ = ["server_binary"]

OLD, NEW, ELSEWHERE = new_token(), new_token(), new_token()


def line(token: str) -> str:
    return token_line(Role.ADMIN, ["*"], token) + "\n"


def opens(access: Access, token: str) -> bool:
    try:
        access.grant(f"Bearer {token}", "")
    except Unknown:
        return False
    return True


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "tokens"
    made.write_text(line(OLD))
    return made


@pytest.fixture
def access(file: Path, monkeypatch: pytest.MonkeyPatch) -> Access:
    monkeypatch.setattr(access_module, "LOOK_S", 0.0)
    return read_tokens(file, line(ELSEWHERE))


def test_a_line_that_is_added_opens_and_one_that_is_gone_closes(access: Access, file: Path) -> None:
    assert (opens(access, OLD), opens(access, NEW)) == (True, False)
    with file.open("a") as more:
        more.write(line(NEW))
    assert (opens(access, OLD), opens(access, NEW)) == (True, True)
    other = file.with_name("next")
    other.write_text(line(NEW))
    other.replace(file)
    assert (opens(access, OLD), opens(access, NEW), opens(access, ELSEWHERE)) == (
        *(False, True),
        True,
    )


@pytest.mark.parametrize("bad", ["", "# none\n", "king of spades\n", "\xff", None])
def test_a_file_that_cannot_be_taken_changes_nothing_and_is_logged_once(
    access: Access, file: Path, bad: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    if bad is None:
        file.unlink()
    else:
        file.write_bytes(bad.encode("latin-1"))
    assert opens(access, OLD)
    assert not opens(access, NEW)
    assert not access.open
    (record,) = caplog.records
    assert (record.levelname, str(file) in record.getMessage()) == ("ERROR", True)
    file.write_text(line(NEW))
    assert (opens(access, OLD), opens(access, NEW)) == (False, True)


def test_the_file_is_looked_at_once_a_second_at_most(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("kvmanager.service.access.time.monotonic", lambda: now_s)
    access = read_tokens(file, "")
    looked: list[Path] = []
    stamp = access_module._stamp

    def look(path: Path) -> tuple[int, ...]:
        looked.append(path)
        return stamp(path)

    monkeypatch.setattr(access_module, "_stamp", look)
    for moment in (100.5, 101.0, 101.5, 101.9, 102.0):
        now_s = moment
        assert opens(access, OLD)
    assert len(looked) == 2


def test_a_service_takes_tokens_as_they_are_changed_and_at_sighup(
    server: Server, file: Path, tmp_path: Path
) -> None:
    service = Service(server.url, "--tokens", str(file), log=tmp_path / "log").start()

    def status(token: str) -> int:
        return service.get("/v1/namespaces", {"authorization": f"Bearer {token}"})[0]

    def log() -> str:
        return (tmp_path / "log").read_text()

    try:
        assert (status(OLD), status(NEW)) == (200, 401)
        with file.open("a") as more:
            more.write(line(NEW))
        eventually(lambda: status(NEW) == 200)
        assert status(OLD) == 200
        file.write_text(line(NEW))
        eventually(lambda: status(OLD) == 401)
        file.write_bytes(b"\xff")
        service.signal(signal.SIGHUP)  # at once, whoever asks
        eventually(lambda: f"stay as they were: the tokens cannot be read: {file}" in log())
        assert status(NEW) == 200
        assert not [secret for secret in (OLD, NEW) if secret in log()]
        assert service.terminate() == 0
    finally:
        service.stop()


def test_a_stream_of_events_ends_with_its_token(server: Server, file: Path) -> None:
    service = Service(server.url, "--tokens", str(file)).start()
    try:
        with Cluster(server.url) as cluster:
            store = cluster.store()
            shown = {"authorization": f"Bearer {OLD}"}
            connection = http.client.HTTPConnection("127.0.0.1", service.port, timeout=20)
            path = f"/v1/events?namespace={id_of(keys.tag(NAMESPACE.fingerprint))}"
            connection.request("GET", path, headers=shown)
            stream = connection.getresponse()
            assert stream.status == 200
            while b"event: live" not in stream.readline():
                pass
            file.write_text(line(NEW))
            eventually(lambda: service.get("/v1/namespaces", shown)[0] == 401)
            pages = digests(1)
            store.write(store.chain(pages))
            rest = stream.read()  # it ends, and tells nothing more
            assert pages[0].hex().encode() not in rest
            connection.close()
    finally:
        service.stop()


def test_a_certificate_that_is_none_is_said_before_anything_is_served(tmp_path: Path) -> None:
    chain, key = certificate(tmp_path)
    Certificate(chain, key).check()
    for wrong in (Certificate(key, chain), Certificate(tmp_path / "no", key)):
        with pytest.raises(ConfigError, match="--tls-cert") as error:
            wrong.check()
        assert str(wrong.chain) in str(error.value)
        assert str(wrong.key) in str(error.value)
    assert os.linesep not in str(error.value)
