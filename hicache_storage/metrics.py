"""Prometheus metrics of a page store. Counters only, no ratios: a scraper divides.

Each page that is asked for (`get`, `prefetch`) ends in exactly one of `hicache_hit_total` and
`hicache_miss_total{reason}`; each page to be stored in exactly one of `hicache_stored_total`,
`hicache_deduplicated_total` and `hicache_refused_total{reason}`. A batch costs a number of
increments that does not grow with its pages.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast
from weakref import WeakKeyDictionary

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry

from hicache_backends.outcomes import Outcome, Reason
from hicache_storage.gauges import Gauges
from hicache_storage.tally import Tally

if TYPE_CHECKING:
    from prometheus_client.metrics import MetricWrapperBase

_log = logging.getLogger(__name__)
_BASE = ("backend", "tenant", "tier")
_OPS = ("exists", "get", "set", "prefetch")
_SECONDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 5)
TIER = "L3"
SILENT_ZERO_AFTER = 20_000
"""Pages looked up without a single hit, though pages are stored, before a warning."""

_COUNTERS: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "requested": ("hicache_pages_requested_total", ("op",)),
    "found": ("hicache_found_total", ()),
    "hit": ("hicache_hit_total", ()),
    "miss": ("hicache_miss_total", ("reason",)),
    "stored": ("hicache_stored_total", ()),
    "deduplicated": ("hicache_deduplicated_total", ()),
    "refused": ("hicache_refused_total", ("reason",)),
    "evict": ("hicache_evict_total", ()),
    "prefetch": ("hicache_prefetch_total", ()),
    "prefetch_ended": ("hicache_prefetch_ended_total", ("fate",)),
    "absent": ("hicache_absent_total", ("reason",)),
    "integrity": ("hicache_integrity_total", ("kind",)),
    "bytes_read": ("hicache_bytes_read_total", ()),
    "bytes_written": ("hicache_bytes_written_total", ()),
}
_HELP = {
    "requested": "Pages that calls asked about.",
    "found": "Pages that exists calls found.",
    "hit": "Pages read and verified.",
    "miss": "Pages asked for and not read, by reason.",
    "stored": "Pages written.",
    "deduplicated": "Pages that were there already or being written by another process.",
    "refused": "Pages not stored, by reason.",
    "evict": "Pages evicted to make room.",
    "prefetch": "Pages asked for ahead of their use.",
    "prefetch_ended": "What became of these pages.",
    "absent": "Pages that exists calls did not find, by reason, where it is known.",
    "integrity": "Pages that were not what their place promised, and those reported to others.",
    "bytes_read": "Bytes of pages read and verified.",
    "bytes_written": "Bytes of pages known to be written.",
}
_MISS: dict[Reason | None, str] = {
    None: f"miss.{Reason.NEVER_WRITTEN.value}",
    **{reason: f"miss.{reason.value}" for reason in Reason},
}
_ABSENT = {reason: f"absent.{reason.value}" for reason in Reason}
_OTHERS = (
    ("prefetch", "prefetch_ended", "fate", ("used", "wasted", "unfulfilled", "cancelled")),
    ("integrity", "integrity", "kind", ("checksum", "stale", "reported")),
)
_families_lock = threading.Lock()
_families: WeakKeyDictionary[CollectorRegistry, dict[str, MetricWrapperBase]] = WeakKeyDictionary()


class Metrics:
    """The counters of one backend and tenant. Thread safe. Build one with `create` for each store.

    `tally`: the same for this store alone, for its reports to the registry.
    """

    def __init__(
        self, families: Mapping[str, MetricWrapperBase], gauges: Gauges, labels: Mapping[str, str]
    ) -> None:
        self.tally = Tally(labels["backend"])

        def counter(name: str, **more: str) -> prometheus.Counter:
            return cast("prometheus.Counter", families[name].labels(**labels, **more))

        self._requested = {op: counter("requested", op=op) for op in _OPS}
        self._miss = {reason: counter("miss", reason=reason.value) for reason in Reason}
        self._absent = {reason: counter("absent", reason=reason.value) for reason in Reason}
        self._others = {
            f"{family}.{label}": counter(name, **{key: label})
            for family, name, key, labels in _OTHERS
            for label in labels
        }
        self._refused = {reason: counter("refused", reason=reason.value) for reason in Reason}
        plain = [name for name, (_, more) in _COUNTERS.items() if not more]
        self._plain = {name: counter(name) for name in plain}
        self._seconds = {
            op: cast("prometheus.Histogram", families["seconds"].labels(**labels, op=op))
            for op in _OPS
        }
        self._gauges, self._labels = gauges, tuple(labels.values())
        self._end_watch: Callable[[], None] | None = None
        gauges.show(self._labels)
        self._lookups_without_hit = 0
        self._stored_anything = False
        self._warned = False

    @classmethod
    def create(
        cls,
        backend: str,
        tenant: str,
        registry: CollectorRegistry | None = None,
        *,
        warn_of_no_hits: bool = True,
    ) -> Metrics:
        """Counters with these labels, in `registry` or the process's own one.

        `warn_of_no_hits`: say once that pages are stored and none is ever found.
        """
        labels = {"backend": backend, "tenant": tenant, "tier": TIER}
        found = registry or prometheus.REGISTRY
        metrics = cls(_families_of(found), Gauges.of(found, _BASE), labels)
        metrics._warned = not warn_of_no_hits
        return metrics

    def observe(
        self, op: str, outcomes: Sequence[Outcome], bytes_moved: int, seconds: float
    ) -> None:
        """Count one batch. `op`: get, prefetch or set. `bytes_moved`: of pages that are ok."""
        self._requested[op].inc(len(outcomes))
        self._seconds[op].observe(seconds)
        if op == "set":
            self._observe_set(outcomes, bytes_moved, seconds)
            return
        reasons = Counter(outcome.reason for outcome in outcomes if not outcome.ok)
        hits = len(outcomes) - reasons.total()
        self.tally.took(
            "get",
            seconds,
            ("get.pages", len(outcomes)),
            ("get.hits", hits),
            ("get.bytes", bytes_moved),
            ("load.us", int(seconds * 1e6)),
            *[(_MISS[reason], pages) for reason, pages in reasons.items()],
            late=bool(reasons) and Reason.TIMEOUT in reasons,
        )
        for reason, pages in reasons.items():
            self._miss[reason or Reason.NEVER_WRITTEN].inc(pages)
        if hits:
            self._plain["hit"].inc(hits)
            self._plain["bytes_read"].inc(bytes_moved)
        self._watch_for_silent_zero(len(outcomes), hits)

    def looked_up(
        self, requested: int, found: int, seconds: float, why: Reason | None = None
    ) -> None:
        """Count one exists call. `why`: the reason of the pages that it did not find, if known."""
        counts = [("exists.pages", requested), ("exists.found", found)]
        if why is not None and found < requested:
            counts.append((_ABSENT[why], requested - found))
            self._absent[why].inc(requested - found)
        self.tally.took("exists", seconds, *counts, late=why is Reason.TIMEOUT)
        self._requested["exists"].inc(requested)
        self._plain["found"].inc(found)
        self._seconds["exists"].observe(seconds)
        self._watch_for_silent_zero(requested, found)

    def evicted(self, pages: int) -> None:
        """Count pages that made room for others."""
        self._plain["evict"].inc(pages)

    def prefetch_started(self, pages: int) -> None:
        """Count pages asked for ahead; what became of them is observed as op "prefetch"."""
        self._plain["prefetch"].inc(pages)
        self.tally.add(("prefetch.pages", pages))

    def count(self, *counts: tuple[str, int]) -> None:
        """Count fates of prefetches and pages that are wrong, by their names in the tally."""
        for name, n in counts:
            self._others[name].inc(n)
        self.tally.add(*counts)

    def watch(
        self, stats: Callable[[], Mapping[str, int | float | str]], media: Sequence[bytes] = ()
    ) -> None:
        """Count a store, whose pages lie on `media`, in the gauges: pages, bytes and
        capacity_bytes of its `stats()`."""
        self.unwatch()
        self._end_watch = self._gauges.add(self._labels, stats, media)

    def unwatch(self) -> None:
        """Let go of `stats`."""
        end, self._end_watch = self._end_watch, None
        if end is not None:
            end()

    def snapshot(self) -> dict[str, int | dict[str, int]]:
        """The counters by short name; those by op or reason are dicts of what is not 0."""
        counts: dict[str, int | dict[str, int]] = {n: _value(c) for n, c in self._plain.items()}
        counts["requested"] = {op: n for op, c in self._requested.items() if (n := _value(c))}
        counts["miss"] = {r.value: n for r, c in self._miss.items() if (n := _value(c))}
        counts["refused"] = {r.value: n for r, c in self._refused.items() if (n := _value(c))}
        return counts

    def _observe_set(self, outcomes: Sequence[Outcome], bytes_moved: int, seconds: float) -> None:
        fates = Counter((outcome.ok, outcome.existed, outcome.reason) for outcome in outcomes)
        counts = [("put.pages", len(outcomes)), ("put.bytes", bytes_moved)]
        late = False
        for (ok, existed, reason), pages in fates.items():
            if not ok:
                why = reason or Reason.SKIPPED
                self._refused[why].inc(pages)
                counts.append((f"refused.{why.value}", pages))
                late = late or why is Reason.TIMEOUT
            elif existed:
                self._plain["deduplicated"].inc(pages)
                counts.append(("put.existed", pages))
            else:
                self._plain["stored"].inc(pages)
                counts.append(("put.stored", pages))
                self._stored_anything = True
        self._plain["bytes_written"].inc(bytes_moved)
        self.tally.took("put", seconds, *counts, late=late)

    def _watch_for_silent_zero(self, pages: int, hits: int) -> None:
        """Stored but never found is a wrong key or namespace far more often than bad luck."""
        if hits or self._warned:
            self._lookups_without_hit = 0
            self._warned = self._warned or bool(hits)
            return
        self._lookups_without_hit += pages
        if self._stored_anything and self._lookups_without_hit >= SILENT_ZERO_AFTER:
            self._warned = True
            _log.warning(
                "pages are stored but none of the last %d looked up was found: do all processes "
                "have the same model, revision, dtype, layout, page size and tenant?",
                self._lookups_without_hit,
            )


def _families_of(registry: CollectorRegistry) -> dict[str, MetricWrapperBase]:
    """The metric families in a registry, made once."""
    with _families_lock:
        families = _families.get(registry)
        if families is None:
            families = _families[registry] = _new_families(registry)
        return families


def _new_families(registry: CollectorRegistry) -> dict[str, MetricWrapperBase]:
    families: dict[str, MetricWrapperBase] = {
        short: prometheus.Counter(name, _HELP[short], (*_BASE, *more), registry=registry)
        for short, (name, more) in _COUNTERS.items()
    }
    families["seconds"] = prometheus.Histogram(
        "hicache_call_seconds",
        "Duration of calls.",
        (*_BASE, "op"),
        buckets=_SECONDS,
        registry=registry,
    )
    return families


def _value(counter: prometheus.Counter) -> int:
    samples = next(iter(counter.collect())).samples
    return int(next(s.value for s in samples if s.name.endswith("_total")))
