"""The real Mooncake: a master, and holders of memory, as processes that can be hurt."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

HOLDER = Path(__file__).with_name("holder.py")
LEASE_MS = 1000
CLIENT_TTL_S = 2


def master_binary() -> str | None:
    beside = Path(sys.executable).with_name("mooncake_master")
    return str(beside) if beside.is_file() else shutil.which("mooncake_master")


def freeze(process: subprocess.Popen[bytes]) -> None:
    """Stop a child and wait until it stands: on a busy machine it goes on for a while."""
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


class MooncakeCluster:
    """A master on loopback and its holders; nothing of it outlives `stop`."""

    def __init__(self, directory: Path, port: int = 50051, http_port: int = 9003) -> None:
        self.directory = directory
        self.port = port
        self.http_port = http_port
        self.master: subprocess.Popen[bytes] | None = None
        self.holders: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def http(self) -> str:
        return f"http://127.0.0.1:{self.http_port}"

    def start_master(self, discard_s: int = 30) -> None:
        """Start it and wait until it takes connections. `discard_s`: after so long it gives up an
        object that was begun and not ended."""
        binary = master_binary()
        assert binary is not None
        with (self.directory / "master.log").open("ab") as log:
            self.master = subprocess.Popen(
                [
                    binary,
                    "--rpc_address=127.0.0.1",
                    f"--rpc_port={self.port}",
                    "--rpc_thread_num=2",
                    "--metrics_host=127.0.0.1",
                    f"--metrics_port={self.http_port}",
                    f"--default_kv_lease_ttl={LEASE_MS}",
                    f"--client_ttl={CLIENT_TTL_S}",
                    f"--put_start_discard_timeout_sec={discard_s}",
                    "--logtostderr",
                ],
                stdout=log,
                stderr=log,
            )
        end = time.monotonic() + 20
        while not self._listens():
            assert self.master.poll() is None, (self.directory / "master.log").read_text()
            assert time.monotonic() < end, "the master does not answer"
            time.sleep(0.02)

    def start_holder(self, segment_bytes: int = 256 << 20) -> subprocess.Popen[bytes]:
        """Start a holder and wait until its memory is in the cluster."""
        with (self.directory / "holder.log").open("ab") as log:
            holder = subprocess.Popen(
                [sys.executable, str(HOLDER), str(segment_bytes), self.address],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "MC_LOG_LEVEL": "ERROR"},
            )
        assert holder.stdout is not None
        assert holder.stdout.readline().strip() == b"ready"
        self.holders.append(holder)
        return holder

    def stop(self) -> None:
        for process in [*self.holders, *filter(None, [self.master])]:
            process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        self.holders, self.master = [], None

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), 1).close()
        except OSError:
            return False
        return True
