"""What a page costs the registry's server, in bytes and in its own processor time, which other work
on the machine does not lengthen as it does the wall clock.

python -m tests.kvmanager.bench_scale [--pages 1000000] [--server valkey]
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.storage import ROOT, PageEntry
from kvmanager.control.sweep import Sweep
from kvmanager.options import RegistryOptions
from kvmanager.recovery import CHUNK_PAGES
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.members import Cluster, Store
from tests.kvmanager.servers import Server

OPTIONS = RegistryOptions(timeout_ms=10_000, heartbeat_ms=60_000, ttl_ms=200_000)
LOOKED_UP, A_LOOKUP = 200_000, 128
REMOVED = 200_000
BEATS = 20_000


class Meter:
    """What one server has used."""

    def __init__(self, server: Server) -> None:
        assert server.process is not None
        self._server, self._pid = server, server.process.pid
        self.base_bytes = self.memory_bytes

    @property
    def memory_bytes(self) -> int:
        with self._server.client() as client:
            return int(client.info("memory")["used_memory"])

    @property
    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def measure(
        self, name: str, count: int, work: Callable[[], object], what: str = "page"
    ) -> None:
        cpu_s, began = self.cpu_s, time.monotonic()
        work()
        us = (self.cpu_s - cpu_s) / count * 1e6
        took_s = time.monotonic() - began
        print(f"{name}: {us:.2f} us of the server a {what}; took {took_s:.1f} s")  # noqa: T201  # its answer


def beat(store: Store) -> None:
    for _ in range(BEATS):
        store.registry.driver.run(store.registry.core.beat(), soon())


def soon() -> Deadline:
    return Deadline.after_ms(10_000)


def publish(store: Store, pages: list[PageEntry]) -> None:
    for at in range(0, len(pages), CHUNK_PAGES):
        store.registry.publish(pages[at : at + CHUNK_PAGES], b"", soon())


def look_up(store: Store, pages: list[PageEntry]) -> None:
    digests = [entry.digest for entry in pages]
    for at in range(0, LOOKED_UP, A_LOOKUP):
        store.registry.lookup(digests[at : at + A_LOOKUP], [store.member.medium], soon(), why=False)


def remove(store: Store, pages: list[PageEntry]) -> None:
    for at in range(0, REMOVED, CHUNK_PAGES):
        store.registry.remove(pages[at : at + CHUNK_PAGES], soon())


def clear(store: Store, meter: Meter) -> None:
    """Until the memory is given back, which is a thread's work of its own."""
    used = meter.memory_bytes
    store.registry.clear_namespace(soon())
    sweep = Sweep(store.registry.core.wire.tag)
    while store.registry.driver.run(sweep.step(), soon()):
        pass
    assert sweep.counters["keys"]
    while meter.memory_bytes - meter.base_bytes > (used - meter.base_bytes) / 5:
        time.sleep(0.01)


def main() -> None:
    options = argparse.ArgumentParser()
    options.add_argument("--pages", type=int, default=1_000_000)
    options.add_argument("--server", default="valkey")
    asked = options.parse_args()
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        server = Server(binary_of(asked.server), Path(directory)).start()
        try:
            with Cluster(server.url) as members:
                run(server, members.store(options=OPTIONS, start=False), asked.pages)
        finally:
            server.stop()


def run(server: Server, store: Store, count: int) -> None:
    meter = Meter(server)
    made = [store.entry(os.urandom(16)) for _ in range(count)]
    chained = [
        PageEntry(entry.digest, made[n - 1].digest if n % 64 else ROOT, entry.location)
        for n, entry in enumerate(made)
    ]
    meter.measure("publish", count, lambda: publish(store, chained))
    used = (meter.memory_bytes - meter.base_bytes) / count
    print(f"memory: {used:.1f} bytes a page")  # noqa: T201  # its answer
    meter.measure("look up by the script", LOOKED_UP, lambda: look_up(store, chained))
    meter.measure("look up", LOOKED_UP, lambda: look_up(store, chained))
    meter.measure("publish again", count, lambda: publish(store, chained))
    meter.measure("remove", REMOVED, lambda: remove(store, chained[::-1]))
    meter.measure("heartbeat", BEATS, lambda: beat(store), "heartbeat")
    meter.measure("clear and sweep", count - REMOVED, lambda: clear(store, meter))


if __name__ == "__main__":
    main()
