"""The storage benchmark: the chosen measures, one after another, on one file system."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from hicache_storage.tools.bench_beside import measure_beside
from hicache_storage.tools.bench_plan import BenchPlan, Figures, Say, judged, merge
from hicache_storage.tools.bench_registry_exists import measure_registry_exists
from hicache_storage.tools.bench_scale import measure_scale
from hicache_storage.tools.bench_slowdown import measure_slowdown
from hicache_storage.tools.bench_throughput import measure_pieces, measure_reads, measure_writes

Measure = Callable[[BenchPlan, Path, Say], Figures]
_FAMILIES: dict[str, tuple[Measure, ...]] = {
    "read": (measure_reads, measure_pieces),
    "write": (measure_writes,),
    "beside": (measure_beside, measure_slowdown, measure_registry_exists),
    "scale": (measure_scale,),
}


def bench_storage(plan: BenchPlan, say: Say = lambda _what: None) -> Figures:
    """Every figure of the plan's measures, and under "bars" how each bar was met.

    Works in a directory of its own below `plan.directory`, removed afterwards.
    """
    plan.directory.mkdir(parents=True, exist_ok=True)
    figures: Figures = {"page_bytes": plan.page_bytes, "pages": plan.pages, "runs": plan.runs}
    for family in plan.measures:
        for measure in _FAMILIES[family]:
            with tempfile.TemporaryDirectory(prefix="hicache-bench-", dir=plan.directory) as path:
                merge(figures, measure(plan, Path(path), say))
    figures["bars"] = {
        bar.key: {"sense": bar.sense, "limit": bar.limit, "value": value, "met": bar.met(value)}
        for bar, value in judged(plan, figures)
    }
    return figures
