"""Whether a client of Mooncake's can be set up, or ended, here and now without harm."""

from __future__ import annotations

import dataclasses
import json
import socket
import subprocess
import sys
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.errors import MissingExtra, StorageUnavailable
from hicache_backends.mooncake.options import Cluster

_CONNECT_S = 2.0
_KNOCK_S = 5.0
_KNOCK = Path(__file__).with_name("knock.py")


def check_master(cluster: Cluster, deadline: Deadline | None = None) -> None:
    """Raises MissingExtra, and StorageUnavailable where a set-up would fail or hang here: tried
    out in a process of its own."""
    _check_installed()
    if not _answers(cluster, _bounded(_CONNECT_S, deadline)):
        raise StorageUnavailable(f"no Mooncake master answers at {cluster.master}")
    guest = dataclasses.replace(cluster, segment_bytes=0)
    command = [sys.executable, str(_KNOCK), json.dumps(guest.setup())]
    try:
        timeout_s = _bounded(_KNOCK_S, deadline)
        ended = subprocess.run(command, capture_output=True, timeout=timeout_s, check=False)  # noqa: S603 - our own script
    except subprocess.TimeoutExpired:
        raise StorageUnavailable(
            f"what listens at {cluster.master} does not answer as a Mooncake master"
        ) from None
    if ended.returncode:
        raise StorageUnavailable(
            f"the Mooncake master at {cluster.master} takes no client: "
            f"{ended.stderr.decode(errors='replace')[-300:]}"
        )


def _check_installed() -> None:
    try:
        import mooncake.store  # noqa: F401 - only whether it is there
    except ImportError as error:
        raise MissingExtra("the backend 'mooncake'", "mooncake") from error


def _bounded(most_s: float, deadline: Deadline | None) -> float:
    return most_s if deadline is None else min(most_s, max(0.001, deadline.remaining_ms() / 1000))


def _answers(cluster: Cluster, timeout_s: float) -> bool:
    try:
        socket.create_connection(cluster.address, timeout_s).close()
    except OSError:
        return False
    return True
