"""Batches beside a thread that spins in Python: the state of an engine's scheduler process."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles

import numpy as np

from hicache_storage.tools.bench_arena import Arena, drop_page_cache, io_mode, open_arena, settle
from hicache_storage.tools.bench_files import FileArena
from hicache_storage.tools.bench_plan import BATCH_PAGES, BenchPlan, Figures, Say, merge
from hicache_storage.tools.spinner import Spinner

LEAST_RUNS = 5
KEYS_PER_S_CALLS = 2000


def measure_beside(plan: BenchPlan, directory: Path, say: Say) -> Figures:
    """A batch get of 128 pages alone and beside the spinner, neighbouring and scattered pages,
    from the medium (O_DIRECT) and from the page cache; and `exists`."""
    figures: Figures = {"beside_spinner": {}}
    chosen = {"neighbouring": np.arange(BATCH_PAGES).tolist(), "scattered": _scattered(plan.pages)}
    runs = max(plan.runs, LEAST_RUNS)
    for heat, mode in (("cold", "auto"), ("warm", "buffered")):
        with open_arena(plan, directory / heat, io_mode=mode) as arena:
            arena.write()
            settle(arena.directory)
            for order, which in chosen.items():
                say(f"batches beside a spinning thread, {order}, {heat}")
                before = _drop(arena) if heat == "cold" else _nothing
                found = _alone_and_beside(runs, lambda w=which: arena.batch(w), before)  # type: ignore[misc]  # a default binds the loop's value
                arena.check(which)
                merge(figures, {"beside_spinner": {order: {heat: found}}})
            merge(figures, {"io": {f"beside_{heat}": io_mode(arena)}})
            if heat == "warm":
                merge(figures, _exists(arena, plan.exists_calls))
                if "sglang-file" in plan.against:
                    say("SGLang's file backend beside the spinning thread")
                    merge(figures, _file_beside(plan, arena, directory / "files"))
    return figures


def _scattered(pages: int) -> list[int]:
    """128 pages no two of which are neighbours where there is room for it, in no order."""
    stride = pages // BATCH_PAGES
    which = np.random.default_rng(1).permutation(BATCH_PAGES) * stride
    scattered: list[int] = which.tolist()
    return scattered


def _alone_and_beside(runs: int, batch: Callable[[], float], before: Callable[[], None]) -> Figures:
    """Milliseconds of one batch, in turn alone and beside the spinner; medians and their ratio."""
    before()
    batch()
    alone: list[float] = []
    beside: list[float] = []
    for _ in range(runs):
        before()
        alone.append(batch() * 1000)
        before()
        with Spinner():
            beside.append(batch() * 1000)
    one, other = median(alone), median(beside)
    return {
        "alone_ms": round(one, 2),
        "beside_ms": round(other, 2),
        "ratio": round(other / one, 3),
        "extra_ms": round(other - one, 2),
    }


def _file_beside(plan: BenchPlan, arena: Arena, directory: Path) -> Figures:
    """The same warm, scattered batch by both sides beside the spinner, in turn."""
    files = FileArena(directory, plan.page_bytes, plan.pages)
    which = _scattered(plan.pages)
    settle(directory)
    files.batch(which)
    arena.batch(which)
    ratios, theirs = [], []
    for _ in range(plan.runs):
        with Spinner():
            theirs.append(files.batch(which))
            ratios.append(theirs[-1] / arena.batch(which))
    return {
        "ratio_to_sglang_file": {"read_warm_beside": round(median(ratios), 2)},
        "sglang_file_beside_ms": round(median(theirs) * 1000, 1),
        "sglang_file": files.files.name,
    }


def _exists(arena: Arena, calls: int) -> Figures:
    """`exists` of 128 keys: latency beside the spinner, rate alone."""
    keys = arena.keys[:BATCH_PAGES]
    began = time.perf_counter()
    for _ in range(KEYS_PER_S_CALLS):
        arena.store.exists(keys)
    rate = KEYS_PER_S_CALLS * len(keys) / (time.perf_counter() - began)
    with Spinner():
        p50, p99 = latencies_ms(calls, lambda: arena.store.exists(keys))
    return {
        "exists_128": {"local_p50_ms": round(p50, 3), "local_p99_ms": round(p99, 3)},
        "exists_keys_per_s": round(rate),
    }


def latencies_ms(calls: int, call: Callable[[], object]) -> tuple[float, float]:
    """p50 and p99 of calls that each begin after a pause, as a storage thread's calls do."""
    found = []
    for _ in range(calls):
        time.sleep(0.001)
        began = time.perf_counter()
        call()
        found.append((time.perf_counter() - began) * 1000)
    percentiles = quantiles(found, n=100, method="inclusive")
    return percentiles[49], percentiles[98]


def _drop(arena: Arena) -> Callable[[], None]:
    return lambda: drop_page_cache(arena.directory)


def _nothing() -> None:
    return
