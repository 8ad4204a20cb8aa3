"""Processes that the tests stop, and ports that they give to them."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path

_RANDOM = random.SystemRandom()  # Hypothesis seeds the other one, in all processes alike


def freeze(pid: int) -> None:
    """Stop a process and wait until it stands: on a busy machine it goes on for a while."""
    os.kill(pid, signal.SIGSTOP)
    give_up = time.monotonic() + 20
    while not all(map(_is_stopped, Path(f"/proc/{pid}/task").iterdir())):
        assert time.monotonic() < give_up, "it goes on"
        time.sleep(0.001)


def _is_stopped(thread: Path) -> bool:
    try:
        stat = (thread / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it ended
        return True
    return stat.rpartition(")")[2].split()[0] == "T"


def free_port() -> int:
    """Below those that the kernel gives to connections, so that none takes it before its server."""
    while True:
        port = _RANDOM.randrange(12_000, 32_000)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
