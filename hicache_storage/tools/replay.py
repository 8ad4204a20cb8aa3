"""Replays a request trace through several real processes that share their pages."""

from __future__ import annotations

import dataclasses
import json
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hicache_storage.tools.line_process import LineProcess
from hicache_storage.tools.replay_backend import backend_options
from hicache_storage.tools.replay_corrupt import asked_again, flip_bits
from hicache_storage.tools.replay_plan import (
    NodeOrders,
    NodeReport,
    ReplayPlan,
    ReplayResult,
    Sizes,
    pages_of,
    replay_namespace,
)
from hicache_storage.tools.traces import predecessors, read_chains

Chains = list[tuple[int, ...]]
Progress = Callable[[int], None]
_NODE = "hicache_storage.tools.replay_node"
_LINE_REQUESTS = 16  # of one command where processes run at their own pace


def replay(plan: ReplayPlan, progress: Progress = lambda _requests: None) -> ReplayResult:
    """Run a plan. `progress` is called with requests done since its last call, from any thread.

    Raises ConfigError for a bad trace or plan, StorageError if a process dies.
    """
    began = time.monotonic()
    chains = read_chains(plan.trace)
    before = predecessors(chains)
    sizes = _sizes(plan, len(before))
    half = len(chains) // 2 if plan.corrupt else len(chains)
    corrupted = 0
    with _directory(plan) as directory, ExitStack() as stack:
        nodes = [
            stack.enter_context(LineProcess.of_module(f"process {n} of the replay", _NODE))
            for n in range(plan.nodes)
        ]
        for node, orders in zip(nodes, _orders(plan, directory, sizes), strict=True):
            node.send(json.dumps(dataclasses.asdict(orders)))
        for node in nodes:
            node.answer()  # ready
        _drive(nodes, range(half), plan.concurrent, progress)
        if plan.corrupt:
            corrupted = _damage(plan, directory, asked_again(chains, half, sizes), nodes)
            _drive(nodes, range(half, len(chains)), plan.concurrent, progress)
        resident = _resident(nodes)
        reports = [NodeReport.from_json(json.loads(node.ask("end"))) for node in nodes]
        seconds = time.monotonic() - began
    return ReplayResult(
        total=NodeReport.sum(reports),
        nodes=reports,
        unique_blocks=len(before),
        resident_pages=resident.total(),
        stranded_pages=sum(n for b, n in resident.items() if _stranded(b, before, resident)),
        corrupted_pages=corrupted,
        seconds=seconds,
    )


def _drive(
    nodes: Sequence[LineProcess], requests: range, concurrent: bool, progress: Progress
) -> None:
    """Send each request to process i mod N: one after another, or each process at its own pace."""
    if not concurrent:
        for request in requests:
            nodes[request % len(nodes)].ask(str(request))
            progress(1)
        return

    def run_share(number: int) -> None:
        share = [request for request in requests if request % len(nodes) == number]
        for start in range(0, len(share), _LINE_REQUESTS):
            line = share[start : start + _LINE_REQUESTS]
            nodes[number].ask(" ".join(map(str, line)))
            progress(len(line))

    with ThreadPoolExecutor(len(nodes)) as pool:
        try:
            list(pool.map(run_share, range(len(nodes))))
        except BaseException:  # an interrupt too: the pool would wait for all of the work
            for node in nodes:
                node.kill()
            raise


def _sizes(plan: ReplayPlan, unique: int) -> Sizes:
    """Without a capacity there is room for every block twice."""
    return Sizes(
        nodes=plan.nodes,
        front=pages_of(plan.front, unique, "front") if plan.front else 0,
        store=pages_of(plan.capacity, unique, "capacity") if plan.capacity else 2 * unique + 4096,
    )


def _orders(plan: ReplayPlan, directory: Path, sizes: Sizes) -> Iterator[NodeOrders]:
    registry_dir = directory / ".registry"
    registry_dir.mkdir(exist_ok=True)
    paths = _paths(plan, directory)
    options = [
        backend_options(plan.backend, path, plan.options, sizes.store, plan.block_bytes)
        for path in paths
    ]
    for node in range(plan.nodes):
        yield NodeOrders(
            trace=str(plan.trace),
            node=node,
            block_bytes=plan.block_bytes,
            backend=plan.backend,
            options=options[node % len(paths)],
            front_blocks=sizes.front,
            registry=plan.registry or ("embedded" if plan.nodes > 1 else None),
            registry_dir=str(registry_dir),
        )


def _paths(plan: ReplayPlan, directory: Path) -> tuple[str, ...]:
    return plan.paths or (str(directory),)


def _damage(
    plan: ReplayPlan, directory: Path, wanted: Sequence[int], nodes: Sequence[LineProcess]
) -> int:
    """Flip a bit in pages that lie in one store, those wanted soonest; how many."""
    resident = _resident(nodes)
    targets = [block for block in wanted if resident[block] == 1][: plan.corrupt]
    fingerprint = replay_namespace(plan.block_bytes).fingerprint
    return flip_bits(_paths(plan, directory), fingerprint, plan.block_bytes, targets)


def _resident(nodes: Sequence[LineProcess]) -> Counter[int]:
    """In how many stores each block of the trace lies."""
    counts: Counter[int] = Counter()
    for node in nodes:
        blocks: Any = json.loads(node.ask("resident"))
        counts.update(blocks)
    return counts


def _stranded(block: int, before: dict[int, int | None], resident: Counter[int]) -> bool:
    parent = before[block]
    return parent is not None and parent not in resident


@contextmanager
def _directory(plan: ReplayPlan) -> Iterator[Path]:
    if plan.directory is not None:
        plan.directory.mkdir(parents=True, exist_ok=True)
        yield plan.directory
        return
    with tempfile.TemporaryDirectory(prefix="hicache-replay-") as directory:
        yield Path(directory)
