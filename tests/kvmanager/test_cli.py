"""The command `kvmanager`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from kvmanager.service.access import read_tokens
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import REPOSITORY, Service
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]

ENVIRONMENT = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}"}


def kvmanager(*words: str) -> subprocess.CompletedProcess[str]:
    return python("-m", "kvmanager.cli", *words)


def python(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_help_imports_nothing_heavy() -> None:
    program = (
        "import sys, kvmanager.cli\n"
        "try:\n    kvmanager.cli.app(['--help'])\nexcept SystemExit:\n    pass\n"
        "heavy = {'fastapi', 'uvicorn', 'redis', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "serve" in done.stdout


def test_a_made_token_opens_what_its_line_says() -> None:
    done = kvmanager("token", "--role", "node", "--tenant", "a", "--tenant", "b")
    token = re.search(r"^token: (\S+)$", done.stdout, re.MULTILINE)
    line = re.search(r"file: (.+)$", done.stdout, re.MULTILINE)
    assert token
    assert line
    assert token[1] not in line[1]
    grant = read_tokens(None, line[1]).grant(f"Bearer {token[1]}", "")
    assert grant.role.value == "node"
    assert grant.tenants == {"a", "b"}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("serve", "--listen", "0.0.0.0:0"), "kvmanager token"),
        (("serve", "--listen", "nowhere"), "HOST:PORT"),
        (("serve", "--redis", "http://h"), "redis://"),
        (("serve", "--redis", "embedded"), "--embedded-dir"),
        (("serve", "--tokens", "/no/such/file"), "cannot be read"),
        (("serve", "--tls-cert", "x"), "--tls-key"),
        (("token", "--role", "node", "--tenant", "a b"), "tenants"),
    ],
)
def test_what_a_person_can_mend_is_said_in_a_line(words: tuple[str, ...], said: str) -> None:
    done = kvmanager(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        done = kvmanager("serve", "--listen", f"127.0.0.1:{holder.getsockname()[1]}")
    assert done.returncode == 2
    assert "in use" in done.stderr


def test_without_its_libraries_the_extra_is_named() -> None:
    program = (
        "import sys\nsys.modules['fastapi'] = None\n"
        "sys.argv = ['kvmanager', 'serve']\nfrom kvmanager.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "pip install 'hicache-storage[kvmanager]'" in done.stderr


def test_a_request_under_way_is_answered_before_the_service_ends(server: Server) -> None:
    service = Service(server.url).start()
    try:
        with socket.create_connection(("127.0.0.1", service.port), timeout=10) as stream:
            stream.sendall(
                b"POST /v1/lookup HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                b"content-length: 2\r\n\r\n{"
            )
            assert service.get("/healthz")[0] == 200  # so the head has been read by now
            service.signal(15)
            while _accepts(service.port):
                time.sleep(0.01)
            stream.sendall(b"}")
            assert stream.recv(65_536).startswith(b"HTTP/1.1 422 ")
        assert service.process is not None
        assert service.process.wait(10) == 0
    finally:
        service.stop()


def test_each_line_of_the_log_is_one_object(server: Server, tmp_path: Path) -> None:
    url = f"redis://user:hunter2@127.0.0.1:{server.port}"
    service = Service(url, "--log-format", "json", log=tmp_path / "log").start()
    assert service.get("/readyz")[0] == 503  # no such user
    assert service.terminate() == 0
    text = (tmp_path / "log").read_text()
    records = [json.loads(line) for line in text.splitlines()]
    assert {"time", "level", "logger", "message"} <= set(records[0])
    assert any(record["message"].startswith("serving redis://***@") for record in records)
    assert "hunter2" not in text


def _accepts(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
