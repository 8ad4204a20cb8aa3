"""How to reach a Mooncake cluster: options of ours, or Mooncake's own file and variables."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_backends.sizes import parse_size

PROTOCOLS = ("tcp", "rdma")
P2P = "P2PHANDSHAKE"
_RDMA_DEVICES = Path("/sys/class/infiniband")

_NAMES = {
    "master": ("master_server_address", "MOONCAKE_MASTER"),
    "metadata_server": ("metadata_server", "MOONCAKE_TE_META_DATA_SERVER"),
    "local_hostname": ("local_hostname", "MOONCAKE_LOCAL_HOSTNAME"),
    "protocol": ("protocol", "MOONCAKE_PROTOCOL"),
    "device": ("device_name", "MOONCAKE_DEVICE"),
    "segment_bytes": ("global_segment_size", "MOONCAKE_GLOBAL_SEGMENT_SIZE"),
}
"""Our name: (the key in the file that MOONCAKE_CONFIG_PATH names, the variable)."""

LIMITS = {
    "MC_TCP_MAX_QUEUED_TRANSFERS_PER_PEER": "65535",
    "MC_TCP_MAX_PENDING_ADMISSIONS_PER_PEER": "65535",
    "MC_TCP_ADMISSION_TIMEOUT_MS": "30000",
    "MC_TCP_STATUS_TIMEOUT_SEC": "10",
    "MC_RPC_TIMEOUT_MS": "10000",
    "MC_STORE_CLIENT_SETUP_RETRIES": "1",
    "MC_LOG_LEVEL": "ERROR",
}
"""Set unless the environment has them. Below about 2,048 transfers to a peer its own limits fail
the excess, or hang; calls that hang are given up in 10 s, not 30."""


@dataclass(frozen=True, slots=True)
class Cluster:
    """Where a cluster is and how this process takes part. `segment_bytes` 0: as a pure client."""

    master: str
    metadata_server: str = P2P
    local_hostname: str = ""
    protocol: str = "tcp"
    device: str = ""
    segment_bytes: int = 0

    def __post_init__(self) -> None:
        """Raises ConfigError."""
        host, _, port = self.master.rpartition(":")
        if not host or not port.isdigit():
            raise ConfigError(f"mooncake.master is host:port of the master, not {self.master!r}")
        if self.protocol not in PROTOCOLS:
            raise ConfigError(f"mooncake.protocol is tcp or rdma, not {self.protocol!r}")
        if self.segment_bytes and self.segment_bytes < 16 << 20:
            raise ConfigError("mooncake.segment_bytes is 0 or at least 16 MiB")

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of the master."""
        host, _, port = self.master.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def transport(self) -> str:
        """What really runs: Mooncake falls back to TCP, without a word, where it finds no NIC."""
        return self.protocol if self.protocol == "tcp" or _has_rdma() else "tcp"

    def setup(self) -> list[Any]:
        """The arguments of Mooncake's setup()."""
        return [
            self.local_hostname or _own_address(self.address),
            self.metadata_server,
            self.segment_bytes,
            0,  # no local buffer: data moves to and from the callers' memory
            self.protocol,
            self.device,
            self.master,
        ]


def find_cluster(given: Mapping[str, Any], environment: Mapping[str, str] = os.environ) -> Cluster:
    """The cluster that `given` names, completed by Mooncake's variables, then by its file.

    `given`: fields of `Cluster`; None stands for not said. Raises ConfigError.
    """
    known = {**_from_file(environment), **_from_variables(environment)}
    known |= {name: value for name, value in given.items() if value is not None}
    if not known.get("master"):
        raise ConfigError(
            "mooncake.master is missing: host:port of the master, as an option, in "
            "MOONCAKE_MASTER, or as master_server_address in the file MOONCAKE_CONFIG_PATH names"
        )
    return Cluster(**known)


def _from_file(environment: Mapping[str, str]) -> dict[str, Any]:
    path = environment.get("MOONCAKE_CONFIG_PATH")
    if not path:
        return {}
    try:
        found = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ConfigError(f"MOONCAKE_CONFIG_PATH {path} cannot be read: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"MOONCAKE_CONFIG_PATH {path} holds no JSON object")
    return _parsed({name: found[key] for name, (key, _) in _NAMES.items() if found.get(key)})


def _from_variables(environment: Mapping[str, str]) -> dict[str, Any]:
    variables = {name: variable for name, (_, variable) in _NAMES.items()}
    return _parsed({n: environment[v] for n, v in variables.items() if environment.get(v)})


def _parsed(found: dict[str, Any]) -> dict[str, Any]:
    if "segment_bytes" in found:
        found["segment_bytes"] = parse_size(
            found["segment_bytes"], name="Mooncake's global_segment_size"
        )
    return found


def _own_address(master: tuple[str, int]) -> str:
    """The address by which this host reaches the master; sends nothing."""
    try:
        kind, _, _, _, place = socket.getaddrinfo(*master, type=socket.SOCK_DGRAM)[0]
        with socket.socket(kind, socket.SOCK_DGRAM) as probe:
            probe.connect(place)
            own: str = probe.getsockname()[0]
    except OSError:
        return socket.gethostname()
    return own


def _has_rdma() -> bool:
    try:
        return any(_RDMA_DEVICES.iterdir())
    except OSError:
        return False
