"""What the backend costs over Mooncake's own calls, in turns on one cluster.

python -m tests.backends.mooncake.bench [--rounds 5] [--segment-mib 1024] [--congestion reno]

A holder process and this one as a client without memory, over TCP on loopback. Each round puts
and gets the same amount bare (`batch_put_from`, `batch_get_into`, no checksum) and through the
backend, from memory that is registered (moved in place where that is faster) and memory that is
not (copied). Rates are those of the first quartile, so that what else runs on the machine counts
little; ratios are of these and, after the stroke, medians of the rounds' own: above 1, the backend
is faster. `limit` is the bare call and a checksum of the same memory, and nothing else: what
verifies can't be faster. `--congestion` sets how TCP in the network of the run keeps to its rate,
instead of as the host does: BBR spreads what it sends over time, by what it thinks of each
connection, which on loopback halves the rate and makes it jump from one to another.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.io.select import open_engine
from hicache_backends.mooncake.backend import MooncakeOptions, open_mooncake
from hicache_backends.mooncake.client import Client, connect, disconnect
from hicache_backends.mooncake.options import find_cluster
from hicache_backends.objects.storage import ObjectStorage
from hicache_backends.pages import Pages
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import NAMESPACE, digests_of
from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.mooncake.network import lonely_network

BATCH_BYTES = 64 << 20
ENGINE = open_engine()
Times = dict[str, list[float]]


def memory_of(count: int, page_bytes: int) -> tuple[np.ndarray, Pages]:
    memory = np.random.default_rng(1).integers(0, 255, count * page_bytes, np.uint8)
    start: int = memory.__array_interface__["data"][0]
    places = [start + i * page_bytes for i in range(count)]
    return memory, Pages.from_pointers(places, [page_bytes] * count, pieces=1, keep=(memory,))


def later() -> Deadline:
    return Deadline.after_ms(60_000)


def timed(call: Callable[[], Sequence[object]], ok: Callable[[object], bool]) -> float:
    began = time.perf_counter()
    results = call()
    seconds = time.perf_counter() - began
    assert all(map(ok, results)), results
    return seconds


def bare(client: Client, pages: Pages, name: str, times: Times) -> None:
    """And how long a checksum of the same pages takes, nothing else going on."""
    keys = [f"bare/{name}/{i}" for i in range(len(pages))]
    size = pages.page_bytes
    put = timed(lambda: client.put_from(keys, pages, later()), lambda code: code == 0)
    got = timed(lambda: client.get_into(keys, pages, later()), lambda code: code == size)
    seeds = bytes(DIGEST_BYTES * len(pages))
    summed = timed(lambda: [ENGINE.checksum(pages, seeds).all()], bool)
    client.remove(keys, later())
    for way, seconds in (("put", put), ("get", got)):
        times.setdefault(f"bare {way}", []).append(seconds)
        times.setdefault(f"limit {way}", []).append(seconds + summed)


def ours(storage: ObjectStorage, pages: Pages, name: str, kind: str, times: Times) -> None:
    digests = digests_of(*(f"{name} {kind} {i}" for i in range(len(pages))))
    unknown = [UNKNOWN] * len(digests)
    put = timed(lambda: storage.put(digests, pages, unknown, later()), bool)
    got = timed(lambda: storage.get(digests, pages, later()), bool)
    times.setdefault(f"{kind} put", []).append(put)
    times.setdefault(f"{kind} get", []).append(got)
    storage.remove(digests)


def measure(cluster: MooncakeCluster, page_bytes: int, rounds: int, moved: int) -> Times:
    """Seconds of each kind of call, a round an entry."""
    namespace = dataclasses.replace(NAMESPACE, page_bytes=page_bytes)
    client = connect(find_cluster({"master": cluster.address}))
    storage = open_mooncake(namespace, MooncakeOptions(cluster.address, max_transfer_bytes=moved))
    count = BATCH_BYTES // page_bytes
    registered, inside = memory_of(count, page_bytes)
    _, outside = memory_of(count, page_bytes)
    start: int = registered.__array_interface__["data"][0]
    assert client.register(start, registered.nbytes)
    times: Times = {}
    for number in range(rounds + 1):
        if number == 1:
            times = {}  # the first round warms up
        turns = [
            partial(bare, client, inside, str(number), times),
            partial(ours, storage, inside, str(number), "registered", times),
            partial(ours, storage, outside, str(number), "staged", times),
        ]
        for turn in range(3):  # each goes first as often as the others
            turns[(number + turn) % 3]()
    client.unregister(start)
    storage.close()
    disconnect(client)
    return times


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--segment-mib", type=int, default=1024)
    parser.add_argument("--page-mib", type=float, nargs="*", default=[0.0625, 1, 4])
    parser.add_argument("--transfer-mib", type=int, default=64)
    parser.add_argument("--congestion", choices=["reno", "cubic", "bbr"])
    chosen = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory(prefix="mooncake-bench-") as directory,
        lonely_network(chosen.congestion),
    ):
        cluster = MooncakeCluster(Path(directory))
        try:
            cluster.start_master()
            cluster.start_holder(chosen.segment_mib << 20)
            for mib in chosen.page_mib:
                times = measure(
                    cluster, int(mib * (1 << 20)), chosen.rounds, chosen.transfer_mib << 20
                )
                for way in ("put", "get"):
                    plain = times[f"bare {way}"]
                    line = f"{mib} MiB {way}: bare {_rate(plain)}"
                    for kind in ("registered", "staged", "limit"):
                        own = times[f"{kind} {way}"]
                        pairs = zip(plain, own, strict=True)
                        median = statistics.median(a / b for a, b in pairs)
                        quick = _quick(plain) / _quick(own)
                        line += f", {kind} {_rate(own)} ({quick:.2f} / {median:.2f})"
                    print(line)  # noqa: T201 - a report
        finally:
            cluster.stop()
    return 0


def _quick(seconds: Sequence[float]) -> float:
    return statistics.quantiles(seconds, n=4)[0]


def _rate(seconds: Sequence[float]) -> str:
    return f"{BATCH_BYTES / _quick(seconds) / 1e9:.2f} GB/s"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
