"""What a storage benchmark was asked to measure, and the bars that its figures are held against."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Literal

from hicache_backends.errors import ConfigError
from hicache_storage.config.fields import MAX_PAGE_BYTES

Figures = dict[str, Any]
Say = Callable[[str], None]
MEASURES = ("read", "write", "beside", "scale")
RIVALS = ("fio", "sglang-file")
BATCH_PAGES = 128
"""Pages of one batch get beside the spinning thread, as SGLang asks for them."""


@dataclass(frozen=True, slots=True)
class BenchPlan:
    """`pieces`: also read layer-first pages of this many 32 KiB pieces; 0 for not.
    `runs`: alternating runs of each comparison, of which the median counts.
    `scale_pages`: stored pages of the large index, held against one of a hundredth of it.
    `io_engine`: of every store, as in its options.
    `window_seconds`, `exists_calls`: how long, and how often, the short calls are measured."""

    directory: Path
    page_bytes: int = 1 << 20
    pages: int = 512
    pieces: int = 0
    measures: tuple[str, ...] = ("read", "write")
    against: tuple[str, ...] = RIVALS
    runs: int = 3
    scale_pages: int = 1_000_000
    io_engine: str = "auto"
    window_seconds: float = 0.8
    exists_calls: int = 300

    def __post_init__(self) -> None:
        _known("measure", self.measures, MEASURES)
        _known("against", self.against, RIVALS)
        if not 8 <= self.page_bytes <= MAX_PAGE_BYTES or self.page_bytes % 8:
            raise ConfigError(
                f"--page-bytes must be a multiple of 8, at most 1 GiB, not {self.page_bytes}"
            )
        least = {"pages": BATCH_PAGES, "runs": 1, "pieces": 0, "scale_pages": 100 * BATCH_PAGES}
        for name, count in least.items():
            if (given := getattr(self, name)) < count:
                option = f"--{name.replace('_', '-')}"
                raise ConfigError(f"{option} must be at least {count:,}, not {given}")

    @property
    def total_bytes(self) -> int:
        """Bytes of all pages."""
        return self.pages * self.page_bytes


def _known(option: str, chosen: tuple[str, ...], known: tuple[str, ...]) -> None:
    for name in chosen:
        if name not in known:
            raise ConfigError(f"{option} is one of {', '.join(known)}, not {name!r}")


@dataclass(frozen=True, slots=True)
class Comparison:
    """Rates in bytes a second, run by run, ours beside theirs."""

    ours: list[float]
    theirs: list[float]

    @property
    def ratio(self) -> float:
        """Median over the runs of ours against theirs in the same run."""
        return median(o / t for o, t in zip(self.ours, self.theirs, strict=True))

    def figures(self) -> Figures:
        """For people: the medians in GiB/s."""
        return {
            "ours_gib_s": round(median(self.ours) / 2**30, 3),
            "theirs_gib_s": round(median(self.theirs) / 2**30, 3),
            "ratios": [round(o / t, 3) for o, t in zip(self.ours, self.theirs, strict=True)],
        }


def alternate(runs: int, ours: Callable[[], float], theirs: Callable[[], float]) -> Comparison:
    """Both in turn, the order changing from run to run."""
    rates: tuple[list[float], list[float]] = ([], [])
    for run in range(runs):
        for side in (0, 1) if run % 2 == 0 else (1, 0):
            rates[side].append((ours, theirs)[side]())
    return Comparison(*rates)


def merge(into: Figures, more: Figures) -> None:
    """Add figures, nested ones to nested ones."""
    for name, value in more.items():
        if isinstance(value, dict):
            merge(into.setdefault(name, {}), value)
        else:
            into[name] = value


@dataclass(frozen=True, slots=True)
class Bar:
    """What a figure has to reach. `key`: its path in the figures, dotted."""

    key: str
    what: str
    sense: Literal[">=", "<="]
    limit: float

    def met(self, value: float) -> bool:
        """Does the figure reach the bar?"""
        return value >= self.limit if self.sense == ">=" else value <= self.limit


def bars(plan: BenchPlan) -> list[Bar]:
    """The bars that apply to a plan; some hang on the size of a page."""
    small = plan.page_bytes <= 64 << 10
    found = [
        Bar("ratio_to_fio.read_cold", "cold read / fio", ">=", 0.80 if small else 0.90),
        Bar("ratio_to_sglang_file.read_warm", "warm read / HiCacheFile", ">=", 1.0),
        Bar("pieces_ratio", "layer-first / one-piece pages", ">=", 0.85),
        Bar(
            "ratio_to_sglang_file.read_warm_beside",
            "warm read beside the spinner / HiCacheFile",
            ">=",
            30,
        ),
    ]
    if small:
        found.append(Bar("ratio_to_sglang_file.read_cold", "cold read / HiCacheFile", ">=", 3))
    else:
        found.append(Bar("ratio_to_fio.write", "write / fio", ">=", 0.85))
    for order in ("neighbouring", "scattered"):
        at = f"beside_spinner.{order}"
        found += [
            Bar(f"{at}.cold.ratio", f"beside / alone, {order}, cold", "<=", 1.3),
            Bar(f"{at}.warm.ratio", f"beside / alone, {order}, warm", "<=", 2),
            Bar(f"{at}.warm.extra_ms", f"beside - alone, {order}, warm, ms", "<=", 12),
        ]
    found += [
        Bar("spinner_slowdown.cold", "spinner slowed, cold", "<=", 0.10),
        Bar("spinner_slowdown.warm", "spinner slowed, warm", "<=", 0.10),
        Bar("exists_128.local_p50_ms", "exists of 128 beside, local p50, ms", "<=", 1),
        Bar("exists_128.registry_p50_ms", "exists of 128 beside, registry p50, ms", "<=", 7),
        Bar("exists_128.registry_p99_ms", "exists of 128 beside, registry p99, ms", "<=", 16),
        Bar("exists_keys_per_s", "local exists, keys/s", ">=", 500_000),
        Bar("index.bytes_a_page", "index memory, bytes a page", "<=", 250),
        Bar("index.startup_seconds", "start-up, s for a million pages", "<=", 1.5),
    ]
    found += [
        Bar(f"scale_ratio.{call}", f"cost of {call}, many / few stored pages", "<=", 1.3)
        for call in ("exists", "get", "set", "evict")
    ]
    return found


def figure_at(figures: Figures, key: str) -> float | None:
    """The figure at a dotted path; None where it was not measured."""
    value: Any = figures
    for part in key.split("."):
        if not isinstance(value, dict) or part not in value:
            return None
        value = value[part]
    return float(value)


def judged(plan: BenchPlan, figures: Figures) -> list[tuple[Bar, float]]:
    """Every bar whose figure was measured."""
    found = ((bar, figure_at(figures, bar.key)) for bar in bars(plan))
    return [(bar, value) for bar, value in found if value is not None]
