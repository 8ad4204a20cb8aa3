"""Requests of a trace looked up by real client processes, beside SGLang's metadata server."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.errors import StorageError
from hicache_backends.identity import page_digests
from hicache_backends.storage import ROOT
from hicache_storage.tools import lookup_client
from hicache_storage.tools.line_process import LineProcess
from hicache_storage.tools.mini3fs import MODULE, Mini3fs
from hicache_storage.tools.registry_bench_plan import Progress, RegistryBenchPlan
from hicache_storage.tools.registry_bench_service import served
from hicache_storage.tools.registry_bench_store import (
    bench_namespace,
    entries,
    loopback_valkey,
    publisher,
    store_batch,
)
from hicache_storage.tools.traces import predecessors, read_chains
from kvmanager.model import MAX_KEYS
from kvmanager.registry import Registry

WARM_UP_REQUESTS = 100


@dataclass(frozen=True, slots=True)
class Run:
    """One timed run of one side, all its clients together. Latencies of requests."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float
    hits: int


@dataclass(frozen=True, slots=True)
class Case:
    """Which of a side's clients look which requests up."""

    name: str
    clients: int
    requests: int


Chains = list[tuple[int, ...]]
Side = Sequence[LineProcess]
"""The clients of one side, waiting."""
Runs = dict[str, dict[str, list[Run]]]
"""Of each side, of each case, one run a round."""
Way = Callable[[str], AbstractContextManager[str]]
"""From a server's endpoint to the one that clients use."""


def measure(
    plan: RegistryBenchPlan, trace: Path, mini3fs: Mini3fs | None, progress: Progress
) -> dict[str, Any]:
    """The figures of both sides and their ratios.

    Raises StorageError if the sides disagree about what is stored.
    """
    chains = read_chains(trace)
    stored = chains[: plan.stored_requests]
    cases = [
        Case("one_client", 1, len(chains)),
        Case(plan.many, plan.clients, len(chains)),
        Case("all_present", 1, len(stored)),
    ]
    with ExitStack() as stack:
        sides = {"registry": stack.enter_context(_registry_side(plan, trace, stored))}
        if plan.http:
            sides["http"] = stack.enter_context(_registry_side(plan, trace, stored, served))
        if mini3fs is not None:
            sides["mini3fs"] = stack.enter_context(_mini3fs_side(plan, trace, mini3fs))
        runs = _alternate(sides, cases, plan.rounds, progress)
    figures: dict[str, Any] = {name: _medians(of_side) for name, of_side in runs.items()}
    if mini3fs is not None:
        for side in runs.keys() - {"mini3fs"}:
            name = "ratio_to_mini3fs" if side == "registry" else f"{side}_ratio_to_mini3fs"
            figures[name] = {case.name: _ratio(runs, side, case.name) for case in cases}
    return figures


def _alternate(
    sides: dict[str, Side], cases: Sequence[Case], rounds: int, progress: Progress
) -> Runs:
    runs: Runs = {side: {case.name: [] for case in cases} for side in sides}
    for clients in sides.values():
        _run(clients, Case("warm-up", len(clients), min(WARM_UP_REQUESTS, cases[0].requests)))
    steps = rounds * len(cases) * len(sides)
    for number in range(rounds):
        for case in cases:
            for side, clients in sides.items():
                runs[side][case.name].append(_run(clients, case))
                done = sum(len(r) for of_side in runs.values() for r in of_side.values())
                progress("looking requests up", done / steps)
            hits = {side: runs[side][case.name][number].hits for side in sides}
            if len(set(hits.values())) > 1:
                raise StorageError(f"the sides found different numbers of pages: {hits}")
    return runs


def _run(clients: Side, case: Case) -> Run:
    """Request i goes to client i mod N, all clients at once."""
    busy = clients[: case.clients]
    for number, client in enumerate(busy):
        client.send(f"{number} {case.requests} {case.clients}")
    reports = [json.loads(client.answer()) for client in busy]
    seconds = max(r["ended"] for r in reports) - min(r["began"] for r in reports)
    latencies_us = sorted(us for report in reports for us in report["us"])
    return Run(
        requests_per_s=len(latencies_us) / seconds,
        p50_ms=latencies_us[len(latencies_us) // 2] / 1000,
        p99_ms=latencies_us[len(latencies_us) * 99 // 100] / 1000,
        hits=sum(report["hits"] for report in reports),
    )


def _medians(of_side: dict[str, list[Run]]) -> dict[str, dict[str, float]]:
    return {
        case: {
            "requests_per_s": round(statistics.median(r.requests_per_s for r in runs), 1),
            "p50_ms": round(statistics.median(r.p50_ms for r in runs), 3),
            "p99_ms": round(statistics.median(r.p99_ms for r in runs), 3),
            "pages_found": runs[0].hits,
        }
        for case, runs in of_side.items()
    }


def _ratio(runs: Runs, side: str, case: str) -> float:
    pairs = zip(runs[side][case], runs["mini3fs"][case], strict=True)
    return round(statistics.median(a.requests_per_s / b.requests_per_s for a, b in pairs), 2)


def _start(clients: int, side: str, *interpreter: str) -> Side:
    name, module = f"a client of the {side}", lookup_client.__name__
    return [LineProcess.of_module(name, module, *interpreter) for _ in range(clients)]


@contextmanager
def _clients(start: Side, orders: dict[str, Any], first_stores: int = 0) -> Iterator[Side]:
    with ExitStack() as stack:
        clients = [stack.enter_context(client) for client in start]
        for number, client in enumerate(clients):
            stored_requests = 0 if number else first_stores
            client.send(json.dumps({**orders, "stored_requests": stored_requests}))
        for client in clients:
            client.answer()  # it is ready
        yield clients


@contextmanager
def _registry_side(
    plan: RegistryBenchPlan, trace: Path, stored: Chains, way: Way = nullcontext
) -> Iterator[Side]:
    """A server with the stored requests' pages, published by one store of a shared medium; the
    clients are other stores there, which reach it by the endpoint that `way` gives."""
    with (
        loopback_valkey() as endpoint,
        tempfile.TemporaryDirectory(dir=plan.directory) as root,
        publisher(endpoint, Path(root)) as (registry, store),
        way(endpoint) as url,
    ):
        _publish(registry, store, stored)
        start = _start(plan.clients, "registry")
        orders = {"side": "registry", "trace": str(trace), "url": url, "root": root}
        with _clients(start, orders) as clients:
            yield clients


def _publish(registry: Registry, store: bytes, stored: Chains) -> None:
    before = predecessors(stored)
    fingerprint = bench_namespace().fingerprint
    digests = dict(zip(before, _digests(fingerprint, list(before)), strict=True))
    parents = [ROOT if b is None else digests[b] for b in before.values()]
    pages = entries(list(digests.values()), parents, store)
    for at in range(0, len(pages), MAX_KEYS):
        store_batch(registry, pages[at : at + MAX_KEYS])


def _digests(fingerprint: bytes, blocks: Sequence[int]) -> list[bytes]:
    return page_digests(fingerprint, [lookup_client.page_key(block) for block in blocks])


@contextmanager
def _mini3fs_side(plan: RegistryBenchPlan, trace: Path, mini3fs: Mini3fs) -> Iterator[Side]:
    """SGLang's server; the first of its clients stores the pages."""
    with mini3fs.serve() as server:
        orders = {
            "side": "mini3fs",
            "trace": str(trace),
            "url": server.url,
            "site": str(mini3fs.site),
            "module": MODULE,
        }
        start = _start(plan.clients, "mini3fs", str(mini3fs.python))
        with _clients(start, orders, plan.stored_requests) as clients:
            yield clients
