"""How fast the registry answers, what a page costs it, and how SGLang's own server compares."""

from __future__ import annotations

from typing import Any

from hicache_storage.tools import mini3fs
from hicache_storage.tools.registry_bench_lookups import measure
from hicache_storage.tools.registry_bench_pages import (
    beside_spinner,
    claim_publish_keys_per_s,
    growth,
)
from hicache_storage.tools.registry_bench_plan import Progress, RegistryBenchPlan


def bench(
    plan: RegistryBenchPlan, progress: Progress = lambda _phase, _share: None
) -> dict[str, Any]:
    """All figures that the plan asks for. Sides alternate; each figure is a median of rounds.

    Raises ConfigError for a bad trace or plan, MissingExtra without the embedded registry.
    """
    figures: dict[str, Any] = {"clients": plan.clients, "rounds": plan.rounds}
    if plan.trace is not None:
        other = None
        if plan.against == "mini3fs":
            cache = plan.cache or mini3fs.default_cache()
            other = mini3fs.prepare(cache, plan.sglang_wheel, lambda step: progress(step, 0.0))
        figures |= measure(plan, plan.trace, other, progress)
    figures["claim_publish_keys_per_s"] = claim_publish_keys_per_s(plan, progress)
    figures |= growth(plan, progress)
    figures["exists_128_beside_spinner"] = beside_spinner(plan, progress)
    return figures
