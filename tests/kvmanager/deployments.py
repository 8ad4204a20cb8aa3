"""Real deployments of several servers: a master with replicas and Sentinels, and a Cluster.

Both are written down before they start, as if they had met long ago: nobody waits for gossip.
"""

from __future__ import annotations

import os
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

import redis
from redis.crc import key_slot

from tests.kvmanager.servers import Server, free_port

SERVICE = "kv"
REPLICATION = ("--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1")
SLOTS = 16_384


class Deployment(ABC):
    """Servers of which one is the master of a key; nothing of them outlives `stop`."""

    def __init__(self, binary: str, directory: Path) -> None:
        self.binary = binary
        self.directory = directory
        self.servers: list[Server] = []

    @property
    @abstractmethod
    def url(self) -> str:
        """The endpoint, with several seeds."""

    @abstractmethod
    def start(self) -> Deployment: ...

    @abstractmethod
    def master(self, key: bytes) -> Server:
        """The one that takes writes of a key now."""

    def server(self, *settings: str) -> Server:
        """One more, not yet started."""
        place = self.directory / str(len(self.servers))
        place.mkdir()
        self.servers.append(Server(self.binary, place, *settings))
        return self.servers[-1]

    def replica_of(self, master: Server) -> Server:
        """One that follows it."""
        for server in self.servers:
            if server is not master and server.process is not None:
                with server.client() as client:
                    info = client.info("replication")
                if info["role"] == "slave" and int(info["master_port"]) == master.port:
                    return server
        raise AssertionError("no replica follows")

    def stop(self) -> None:
        for server in self.servers:
            server.stop()

    def __enter__(self) -> Deployment:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


class SentinelDeployment(Deployment):
    """One master, its replica, and three Sentinels that replace it within about two seconds."""

    def __init__(self, binary: str, directory: Path, *settings: str) -> None:
        super().__init__(binary, directory)
        self._settings = settings
        self.sentinel_ports = [free_port() for _ in range(3)]
        self._sentinels: list[subprocess.Popen[bytes]] = []

    @property
    def url(self) -> str:
        seeds = ",".join(f"127.0.0.1:{port}" for port in self.sentinel_ports)
        return f"redis-sentinel://{seeds}/{SERVICE}"

    def start(self) -> SentinelDeployment:
        first = self.server(*REPLICATION, *self._settings).start(wait=False)
        follows = ("--replicaof", f"127.0.0.1 {first.port}")
        second = self.server(*REPLICATION, *follows, *self._settings).start(wait=False)
        for server in self.servers:
            server.await_ready()
        await_link(second)
        ids = [os.urandom(20).hex() for _ in self.sentinel_ports]
        for n, port in enumerate(self.sentinel_ports):
            self._start_sentinel(n, port, ids)
        for port in self.sentinel_ports:
            _await_answer(port)
        return self

    def _start_sentinel(self, n: int, port: int, ids: list[str]) -> None:
        first, second = self.servers
        others = [
            f"sentinel known-sentinel {SERVICE} 127.0.0.1 {self.sentinel_ports[m]} {ids[m]}"
            for m in range(len(ids))
            if m != n
        ]
        lines = [
            f"port {port}",
            "bind 127.0.0.1",
            f"dir {self.directory}",
            f"logfile {self.directory}/sentinel-{n}.log",
            f"sentinel myid {ids[n]}",
            f"sentinel monitor {SERVICE} 127.0.0.1 {first.port} 2",
            f"sentinel down-after-milliseconds {SERVICE} 700",
            f"sentinel failover-timeout {SERVICE} 2000",
            f"sentinel known-replica {SERVICE} 127.0.0.1 {second.port}",
            *others,
        ]
        written = self.directory / f"sentinel-{n}.conf"
        written.write_text("\n".join(lines) + "\n")
        self._sentinels.append(subprocess.Popen([self.binary, str(written), "--sentinel"]))

    def master(self, key: bytes = b"") -> Server:
        for server in self.servers:
            if server.process is not None:
                with server.client() as client:
                    if client.role()[0] == b"master":
                        return server
        raise AssertionError("there is no master")

    def stop(self) -> None:
        for process in self._sentinels:
            process.kill()
            process.wait()
        super().stop()


class ClusterDeployment(Deployment):
    """Masters that share the slots, each with as many replicas, on the loopback interface."""

    def __init__(
        self,
        binary: str,
        directory: Path,
        *settings: str,
        masters: int = 3,
        replicas: int = 1,
    ) -> None:
        super().__init__(binary, directory)
        self._settings = settings
        self._masters = masters
        self._replicas = replicas
        self.ids: list[str] = []

    @property
    def url(self) -> str:
        seeds = ",".join(f"127.0.0.1:{server.port}" for server in self.servers[:3])
        return f"redis-cluster://{seeds}"

    def start(self) -> ClusterDeployment:
        buses: list[int] = []
        for _ in range(self._masters * (1 + self._replicas)):
            buses.append(free_port())
            self.ids.append(os.urandom(20).hex())
            self.server(
                *REPLICATION,
                *("--cluster-enabled", "yes", "--cluster-port", str(buses[-1])),
                *("--cluster-node-timeout", "1000", "--cluster-replica-validity-factor", "0"),
                *self._settings,
            )
        for n, server in enumerate(self.servers):
            written = server.directory / "nodes.conf"
            lines = [self._line(m, buses[m], myself=m == n) for m in range(len(buses))]
            lines.append(f"vars currentEpoch {self._masters} lastVoteEpoch 0")
            written.write_text("\n".join(lines) + "\n")
            server.start(wait=False)
        for n, server in enumerate(self.servers):
            server.await_ready()
            await_cluster(server)
            if n >= self._masters:
                await_link(server)
        return self

    def _line(self, n: int, bus: int, *, myself: bool) -> str:
        where = f"{self.ids[n]} 127.0.0.1:{self.servers[n].port}@{bus}"
        own = "myself," if myself else ""
        if n >= self._masters:
            return f"{where} {own}slave {self.ids[n % self._masters]} 0 0 {n} connected"
        first, after = (SLOTS * part // self._masters for part in (n, n + 1))
        return f"{where} {own}master - 0 0 {n + 1} connected {first}-{after - 1}"

    def master(self, key: bytes) -> Server:
        slot = key_slot(key)
        ports = {server.port: server for server in self.servers}
        for server in self.servers:
            if server.process is not None:
                with server.client() as client:
                    listed = client.execute_command("CLUSTER SLOTS")
                for first, last, (_, port, *_), *_ in listed:
                    if first <= slot <= last:
                        return ports[port]
        raise AssertionError("no node has the slot")


def await_link(replica: Server) -> None:
    """Until a replica has all that its master has."""
    _await(lambda client: client.info("replication").get("master_link_status") == "up", replica)


def await_cluster(server: Server) -> None:
    """Until a node says that the Cluster is complete."""

    def complete(client: redis.Redis) -> bool:
        said = client.execute_command("CLUSTER INFO")  # type: ignore[no-untyped-call]  # redis-py's
        return bool(said["cluster_state"] == "ok")

    _await(complete, server)


def _await(happened: Callable[[redis.Redis], bool], server: Server) -> None:
    give_up = time.monotonic() + 20
    with server.client() as client:
        while not happened(client):
            assert time.monotonic() < give_up, "the servers did not find each other"
            time.sleep(0.02)


def _await_answer(port: int) -> None:
    give_up = time.monotonic() + 20
    with redis.Redis(host="127.0.0.1", port=port) as client:
        while True:
            try:
                client.ping()
                return
            except redis.RedisError:
                assert time.monotonic() < give_up, "a Sentinel did not start"
                time.sleep(0.02)
