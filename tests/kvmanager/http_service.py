"""The service as a process of its own, as an operator starts it."""

from __future__ import annotations

import http.client
import os
import signal
import ssl
import subprocess
import sys
import time
from pathlib import Path

from tests.processes import free_port, freeze

REPOSITORY = Path(__file__).parents[2]


class Service:
    """`kvmanager serve` over a Redis; nothing of it outlives `stop`."""

    def __init__(
        self,
        redis_url: str,
        *options: str,
        environment: dict[str, str] | None = None,
        log: Path | None = None,
        tls: Path | None = None,
    ) -> None:
        """`tls`: the certificate that the options name."""
        self.port = free_port()
        self.log = log
        self._tls = ssl.create_default_context(cafile=tls) if tls else None
        self._command = [sys.executable, "-m", "kvmanager.cli", "serve", "--redis", redis_url]
        self._command += ["--listen", f"127.0.0.1:{self.port}", *options]
        self._environment = {
            **os.environ,
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}",
            **(environment or {}),
        }
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> Service:
        with Path(self.log or os.devnull).open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=log, stderr=log
            )
        if wait:
            self.await_ready()
        return self

    def await_ready(self) -> None:
        assert self.process is not None
        give_up = time.monotonic() + 30
        while self.process.poll() is None and time.monotonic() < give_up:
            try:
                self.get("/healthz")
            except OSError:
                time.sleep(0.02)
            else:
                return
        raise AssertionError("the service did not start")

    def get(self, path: str, headers: dict[str, str] | None = None) -> tuple[int, bytes]:
        return self.request("GET", path, b"", headers)

    def request(
        self, method: str, path: str, body: bytes, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes]:
        if self._tls:
            connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                "localhost", self.port, timeout=15, context=self._tls
            )
        else:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def signal(self, number: int) -> None:
        assert self.process is not None
        if number == signal.SIGSTOP:
            freeze(self.process.pid)
        else:
            self.process.send_signal(number)

    def terminate(self) -> int:
        """As an operator ends it; its exit status."""
        self.signal(signal.SIGTERM)
        assert self.process is not None
        return self.process.wait(20)

    def kill(self) -> None:
        """As a crash does it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    stop = kill
