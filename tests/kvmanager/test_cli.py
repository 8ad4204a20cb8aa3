"""The command `kvmanager`."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import time
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest
from typer.main import get_command

from hicache_backends.errors import ConfigError
from hicache_storage.cli.app import build as build_storage
from kvmanager.cli.app import PLUGGED_IN, build
from kvmanager.service.access import read_tokens
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import REPOSITORY, Service
from tests.kvmanager.servers import Server
from tests.test_packaging import PYPROJECT

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
        "import sys\nfrom kvmanager.cli.app import run\nassert run(['--help']) == 0\n"
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


def test_the_readme_names_every_command_and_no_other() -> None:
    known = {"fsck"}  # where the distribution is not installed, its entry point is not either
    for name, command in get_command(build()).commands.items():  # type: ignore[attr-defined]  # a group
        known |= {f"{name} {inner}" for inner in getattr(command, "commands", ())} or {name}
    rows = re.findall(r"^\| (`kvmanager .*?) \|", (REPOSITORY / "README.md").read_text(), re.M)
    assert {*re.findall(r"`kvmanager ([a-z]+(?: [a-z]+)?)", "\n".join(rows))} == known


def test_commands_that_need_media_come_from_the_package_that_has_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared = PYPROJECT["project"]["entry-points"][PLUGGED_IN]
    entries = [EntryPoint(name, value, PLUGGED_IN) for name, value in declared.items()]
    monkeypatch.setattr("kvmanager.cli.app.entry_points", lambda group: entries)
    ours = get_command(build()).commands["fsck"]  # type: ignore[attr-defined]  # a group
    theirs = get_command(build_storage()).commands["fsck"]  # type: ignore[attr-defined]  # the same
    assert [each.name for each in ours.params] == [each.name for each in theirs.params]


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


def test_a_token_that_is_saved_is_not_shown_and_nobody_else_reads_it(tmp_path: Path) -> None:
    saved, lines = tmp_path / "node", tmp_path / "tokens"
    to_files = ("--save", str(saved), "--tokens", str(lines))
    done = kvmanager("token", "--role", "node", "--tenant", "a", *to_files)
    assert (done.returncode, done.stdout) == (0, "")
    assert {path.stat().st_mode & 0o777 for path in (saved, lines)} == {0o600}
    token = saved.read_text().strip()
    assert read_tokens(lines, "").grant(f"Bearer {token}", "").tenants == {"a"}
    again = kvmanager("token", "--role", "admin", "--tenant", "*", *to_files)
    assert (again.returncode, saved.read_text().strip()) == (2, token)  # a file of its own
    to_files = ("--save", str(tmp_path / "admin"), "--tokens", str(lines))
    assert kvmanager("token", "--role", "admin", "--tenant", "*", *to_files).returncode == 0
    assert len(lines.read_text().splitlines()) == 2
    to_files = ("--save", str(tmp_path / "lost"), "--tokens", str(tmp_path / "no" / "tokens"))
    assert kvmanager("token", "--role", "node", "--tenant", "a", *to_files).returncode == 2
    assert not (tmp_path / "lost").exists()  # no service knows that token


@pytest.mark.parametrize("command", ["kvmanager.cli", "hicache_storage"])
def test_a_checkout_that_is_not_installed_has_no_traceback_for_its_version(command: str) -> None:
    program = (
        "import importlib.metadata as m, runpy, sys\n"
        "def missing(name): raise m.PackageNotFoundError(name)\n"
        f"m.version = missing; sys.argv = ['x', '--version']\nrunpy.run_module({command!r}, "
        "run_name='__main__')"
    )
    done = python("-c", program)
    assert (done.returncode, done.stderr) == (0, "")
    assert "not installed" in done.stdout


def test_the_password_of_redis_may_be_in_a_file(tmp_path: Path) -> None:
    from kvmanager.cli.serve import with_password

    file = tmp_path / "password"
    file.write_text("p@ss/word\n")
    assert with_password("redis://kv@h:1/2", file) == "redis://kv:p%40ss%2Fword@h:1/2"
    assert with_password("redis://h", file) == "redis://:p%40ss%2Fword@h"
    assert with_password("redis://h", None) == "redis://h"
    for url in ("redis://kv:known@h", "unix:///socket", "embedded"):
        with pytest.raises(ConfigError, match="--redis-password-file"):
            with_password(url, file)


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
        (("media", "--endpoint", "redis://127.0.0.1:1"), "127.0.0.1:1"),
        (("media", "--endpoint", "http://127.0.0.1:1"), "127.0.0.1:1"),
    ],
)
def test_what_a_person_can_mend_is_said_in_a_line(words: tuple[str, ...], said: str) -> None:
    done = kvmanager(*words)
    assert done.returncode == 2
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("Usage:") or len(done.stderr.splitlines()) == 1


def test_a_port_that_is_taken_is_said() -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        done = kvmanager("serve", "--listen", f"127.0.0.1:{holder.getsockname()[1]}")
    assert done.returncode == 2
    assert "in use" in done.stderr


def test_without_its_libraries_the_extra_is_named() -> None:
    program = (
        "import sys\nsys.modules['fastapi'] = None\n"
        "sys.argv = ['kvmanager', 'serve']\nfrom kvmanager.cli import main\nsys.exit(main())"
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
