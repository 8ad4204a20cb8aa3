"""A process that uses an embedded registry, for tests that end it in every way."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import redis

SCRIPT = """
import sys
from kvmanager.embedded import EmbeddedValkey
sys.stdin.readline()
share = EmbeddedValkey.acquire(sys.argv[1])
print(share.url, flush=True)
for line in sys.stdin:
    getattr(share, line.strip())()
    print("done", flush=True)
"""


class User:
    """A real process holding a share; `begin` lets it acquire."""

    def __init__(self, directory: Path, script: str = SCRIPT) -> None:
        self._url = ""
        root = Path(__file__).parents[2]
        self.process = subprocess.Popen(
            [sys.executable, "-c", script, str(directory)],
            env={**os.environ, "PYTHONPATH": f"{root}:{root / 'backends'}"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self) -> None:
        self.send("begin")

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def url(self) -> str:
        """The answer to `begin`."""
        if not self._url:
            self._url = self.answer()
        return self._url

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def call(self, method: str) -> None:
        self.send(method)
        assert self.answer() == "done"

    def kill(self) -> None:
        self.process.kill()
        self.reap()

    def reap(self) -> None:
        self.process.wait(10)
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            pipe.close()


def server_pid(url: str) -> int:
    with redis.Redis.from_url(url) as client:
        return int(client.info("server")["process_id"])


def guard_pid(server: int) -> int:
    return int(Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()[1])


def await_end(pid: int, seconds: float = 2.0) -> None:
    """Until the process has ended, reaped or not."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(seconds * 1000), f"process {pid} still runs after {seconds} s"
    finally:
        os.close(handle)
