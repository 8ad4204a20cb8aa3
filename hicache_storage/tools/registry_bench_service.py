"""The registry's service as a process, for its figures."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hicache_backends.errors import MissingExtra, StorageUnavailable

START_S = 30.0


@contextmanager
def served(redis_url: str) -> Iterator[str]:
    """`kvmanager serve` over a server, on a free loopback port: its endpoint.

    Raises MissingExtra without the service's libraries, StorageUnavailable.
    """
    try:
        import kvmanager.service.serving as service
    except ImportError:
        raise MissingExtra("--http", "kvmanager") from None
    _ = service
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [sys.executable, "-m", "kvmanager.cli", "serve"]
    command += ["--redis", redis_url, "--listen", f"127.0.0.1:{port}", "--log-level", "error"]
    paths = os.pathsep.join(path for path in sys.path if path)
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": paths}) as process:  # noqa: S603  # this interpreter
        try:
            _await(process, port)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def _await(process: subprocess.Popen[bytes], port: int) -> None:
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and process.poll() is None:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
        try:
            connection.request("GET", "/readyz")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.02)
        finally:
            connection.close()
    raise StorageUnavailable(f"the registry's service did not start on port {port}")
