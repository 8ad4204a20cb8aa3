"""Our backend beside SGLang's own `mooncake` on one cluster: pages of 1 MiB put and got.

A master and a holder process, TCP on loopback; both sides are clients without memory in one
process, with host pools of their own, and take turns. SGLang's class moves its registered pool in
place, stores K and V apart and verifies nothing; ours verifies, and copies unless
`sglang.register_pools` is set. Ratios are medians of the rounds: above 1, ours is faster. TCP runs
with Reno's congestion control: BBR's rate depends on what each connection went through before, so
that on loopback either side was up to twice as fast as the other. Run it with `make bench-sglang`.
"""

from __future__ import annotations

import json
import statistics
import time
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from sglang.srt.mem_cache.utils import get_storage_hash_str

from hicache_storage.tools.spinner import Spinner
from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.mooncake.real import mooncake_network
from tests.sglang.bench import MIB_PAGES, PAGE_BYTES, PAGE_TOKENS
from tests.sglang.harness.tree import Flags, Tree, tokens

OURS, REGISTERED, THEIRS = "staged", "registered", "mooncake"
PHASES = ("put", "get", "put beside spinner", "get beside spinner")


class Side:
    """One backend and a batch of pages in its host pool."""

    def __init__(self, name: str, tree: Tree, pages: int) -> None:
        self.name = name
        self.tree = tree
        self._pages = pages
        self._pool = tree.controller.mem_pool_host
        self._indices = self._pool.alloc(pages * PAGE_TOKENS)
        self._bytes = self._pool.kv_buffer.view(torch.uint8)

    def run(self, seed: int, beside: bool) -> dict[str, float]:
        """Seconds of a put and a get of pages that are new. Raises AssertionError."""
        ids: array[int] = tokens(self._pages, page_size=PAGE_TOKENS, seed=seed)
        keys = get_storage_hash_str(ids, None, page_size=PAGE_TOKENS)
        self._bytes.random_(0, 256)
        stored = self._bytes.clone()
        with Spinner() if beside else nullcontext():
            put = self._timed(self.tree.backend.batch_set_v1, keys)
            self._bytes.zero_()
            got = self._timed(self.tree.backend.batch_get_v1, keys)
        size = self._pages * PAGE_TOKENS
        assert torch.equal(self._rows()[:size], self._rows(stored)[:size])
        suffix = " beside spinner" if beside else ""
        return {f"put{suffix}": put, f"get{suffix}": got}

    def _timed(self, call: Callable[..., Any], keys: list[str]) -> float:
        began = time.perf_counter()
        done = call(keys, self._indices)
        took = time.perf_counter() - began
        assert all(done), f"{self.name}: {done.count(False)} pages failed"
        return took

    def _rows(self, memory: torch.Tensor | None = None) -> torch.Tensor:
        """Bytes by token, of every layer and of keys and values."""
        found = self._bytes if memory is None else memory
        return found.transpose(0, 1).reshape(found.shape[1], -1)


def measure(
    folder: Path, pages: int, rounds: int, congestion: str
) -> dict[str, dict[str, dict[str, float]]]:
    """By way of ours and phase: medians in seconds, and theirs over ours."""
    with mooncake_network(congestion):
        return {name: _beside(name, folder, pages, rounds) for name in (OURS, REGISTERED)}


def _beside(name: str, folder: Path, pages: int, rounds: int) -> dict[str, dict[str, float]]:
    """One way of ours and SGLang's class, as in a server one of them is."""
    times: dict[str, dict[str, list[float]]] = {p: {name: [], THEIRS: []} for p in PHASES}
    with ExitStack() as stack:
        cluster = MooncakeCluster(folder)
        stack.callback(cluster.stop)
        cluster.start_master()
        cluster.start_holder(4 * pages * PAGE_BYTES)
        own, theirs = (stack.enter_context(_side(n, cluster, pages)) for n in (name, THEIRS))
        for number in range(2 * (rounds + 1)):
            order = (own, theirs) if number % 4 < 2 else (theirs, own)
            for turn, side in enumerate(order):
                took = side.run(2 * number + turn, beside=bool(number % 2))
                if number > 1:  # the first turns warm up
                    for phase, seconds in took.items():
                        times[phase][side.name].append(seconds)
            theirs.tree.backend.store.remove_all(True)
    return {phase: _summary(*by_side.values()) for phase, by_side in times.items()}


def _summary(own: list[float], theirs: list[float]) -> dict[str, float]:
    ratio = statistics.median(t / o for t, o in zip(theirs, own, strict=True))
    medians = {n: round(statistics.median(s), 4) for n, s in (("ours", own), ("theirs", theirs))}
    return {**medians, "ratio": round(ratio, 2)}


@contextmanager
def _side(name: str, cluster: MooncakeCluster, pages: int) -> Iterator[Side]:
    shape = replace(MIB_PAGES, layout="page_first", tokens=(pages + 4) * PAGE_TOKENS)
    if name != THEIRS:
        backend, config = "dynamic", _ours(cluster, registered=name == REGISTERED)
    else:
        backend = THEIRS
        config = {
            "master_server_address": cluster.address,
            "metadata_server": "P2PHANDSHAKE",
            "local_hostname": "127.0.0.1",
            "protocol": "tcp",
            "global_segment_size": 0,
        }
    with Tree(config, shape, flags=Flags(storage_backend=backend, host_ratio=1.1)) as tree:
        yield Side(name, tree, pages)


def _ours(cluster: MooncakeCluster, *, registered: bool) -> dict[str, Any]:
    return {
        "backend_name": "hicache",
        "module_path": "hicache_storage.sglang",
        "class_name": "HiCacheL3",
        "interface_v1": 1,
        "storage_backend": "mooncake",
        "mooncake": {"master": cluster.address},
        "sglang": {"register_pools": registered},
        "identity": {"model": "bench", "revision": "1"},
    }


def main(
    pages: Annotated[int, typer.Option(help="Pages of 1 MiB a call.", min=1)] = 64,
    rounds: Annotated[int, typer.Option(min=1)] = 9,
    congestion: Annotated[str, typer.Option(help="TCP congestion control.")] = "reno",
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Times of a put and a get, ours and SGLang's own class."""
    torch.set_num_threads(1)  # its threads stay awake for a while, on cores that the calls need
    with TemporaryDirectory(prefix="mooncake-bench-") as folder:
        figures = measure(Path(folder), pages, rounds, congestion)
    if as_json:
        typer.echo(json.dumps(figures))
        return
    for name, phases in figures.items():
        for phase, row in phases.items():
            times = f"{row['ours'] * 1000:.0f} ms against {row['theirs'] * 1000:.0f} ms"
            typer.echo(f"{name}, {phase}: {times}, {row['ratio']:.2f} x as fast")


if __name__ == "__main__":
    from sglang_cpu.patches import apply

    apply()
    typer.run(main)
