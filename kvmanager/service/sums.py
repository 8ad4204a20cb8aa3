"""What processes reported, and what the registry holds, as Prometheus reads it.

Made at a scrape from what was last looked at; nothing is asked of Redis. All services over one
Redis show the same: take their maximum, not their sum. Labels are bounded: 64 tenants have a name
of their own, the others are `other`; every other label is from a vocabulary.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from kvmanager import figures
from kvmanager.control.census import LOADED_TOKENS, Look
from kvmanager.control.overview_parts import liveness
from kvmanager.control.quotas import tenants_orphan_bytes
from kvmanager.control.tenant_view import sums_of
from kvmanager.service.control.census import Seen

MAX_TENANTS = 64
OTHER = "other"
_US = 1e6
_OCTAVES = range(4, 28)  # 16 us to 134 s
_AGES = range(0, 26, 2)  # 1 s to half a year

_FAMILIES = (
    ("tokens", "Prompt tokens by where their KV came from.", "source", "tokens"),
    ("missed_pages", "Pages asked for and not read.", "reason", "miss"),
    ("absent_pages", "Pages that exists calls did not find; a sample.", "reason", "absent"),
    ("refused_pages", "Pages not stored.", "reason", "refused"),
    ("evicted_pages", "Pages that went to make room, or were too old.", "cause", "evicted"),
    ("wrong_pages", "Pages that were wrong when they were read.", "kind", "integrity"),
)
_PLAIN = (
    ("asked_pages", "Pages asked for.", "get.pages", 1),
    ("hit_pages", "Pages read and verified.", "get.hits", 1),
    ("exists_pages", "Pages that exists calls asked about.", "exists.pages", 1),
    ("found_pages", "Pages that exists calls found.", "exists.found", 1),
    ("read_bytes", "Bytes of pages read and verified.", "get.bytes", 1),
    ("put_pages", "Pages to be stored.", "put.pages", 1),
    ("stored_pages", "Pages written.", "put.stored", 1),
    ("existing_pages", "Pages to be stored that were there.", "put.existed", 1),
    ("written_bytes", "Bytes of pages written.", "put.bytes", 1),
    ("load_seconds", "Time spent in calls that read pages.", "load.us", 1e-6),
    ("loaded_tokens", "Tokens of the pages that were read.", LOADED_TOKENS, 1),
    ("prefill_seconds", "Time that engines computed.", "prefill.us", 1e-6),
    ("prefill_tokens", "Tokens that engines computed.", "prefill.tokens", 1),
    ("prefetch_pages", "Pages asked for ahead of their use.", "prefetch.pages", 1),
)
_FATES = ("used", "unfulfilled", "wasted", "cancelled")


class TenantLabels:
    """Which tenants have a label of their own: those seen first, until they go."""

    def __init__(self) -> None:
        self._named: list[str] = []

    def of(self, tenants: Iterable[str]) -> dict[str, str]:
        """The label of each."""
        present = sorted(tenants)
        self._named = [name for name in self._named if name in present]
        new = [name for name in present if name not in self._named]
        self._named += new[: MAX_TENANTS - len(self._named)]
        return {name: name if name in self._named else OTHER for name in present}


@dataclass(frozen=True, eq=False)
class Sums:
    """A collector of one scrape. `looks` and the rest: by label of a tenant."""

    looks: Mapping[str, Sequence[Look]]
    quotas: Mapping[str, int]
    sampled_s: Mapping[str, float]
    at_s: float
    sums: Mapping[str, Mapping[str, int]]

    @classmethod
    def of(cls, seen: Seen, labels: Mapping[str, str]) -> Sums:
        """Of the tenants in `labels` alone."""
        looks: defaultdict[str, list[Look]] = defaultdict(list)
        quotas: Counter[str] = Counter()
        sampled: dict[str, float] = {}
        sums: defaultdict[str, list[Mapping[str, int]]] = defaultdict(list)
        for tenant, label in labels.items():
            own = seen.looks.get(tenant, ())
            looks[label] += own
            sums[label].append(seen.sums[tenant] if tenant in seen.sums else sums_of(own))
            if tenant in seen.quotas:
                quotas[label] += seen.quotas[tenant]
            last_s = seen.sampled_s.get(tenant, 0.0)
            sampled[label] = min(sampled.get(label, last_s), last_s)
        total = {label: figures.summed(some) for label, some in sums.items()}
        return cls(looks, quotas, sampled, seen.at_s, total)

    def collect(self) -> Iterator[Metric]:
        """All families, those without a sample as well."""
        yield from _counters(self.sums)
        yield from _histograms(self.sums)
        yield from self._space()
        yield from self._processes()
        yield from self._checks()

    def _space(self) -> Iterator[Metric]:
        used = _gauge("used_bytes", "Bytes that pages take, as the registry knows.", "tenant")
        pages = _gauge("pages", "Pages in the registry.", "tenant")
        spaces = _gauge("namespaces", "Namespaces.", "tenant")
        orphans = _gauge("orphan_bytes", "Of these, what vanished stores left, about.", "tenant")
        quota = _gauge("quota_bytes", "Bytes that a tenant may use.", "tenant")
        lag = _gauge("history_lag_seconds", "Age of the last sample of a tenant's sums.", "tenant")
        for label, looks in self.looks.items():
            used.add_metric([label], sum(look.record.bytes for look in looks))
            orphans.add_metric([label], tenants_orphan_bytes(looks))
            pages.add_metric([label], sum(look.record.pages for look in looks))
            spaces.add_metric([label], len(looks))
            if self.sampled_s[label]:
                lag.add_metric([label], max(0.0, self.at_s - self.sampled_s[label]))
        for label, size in self.quotas.items():
            quota.add_metric([label], size)
        yield from (used, orphans, pages, spaces, quota, lag)

    def _processes(self) -> Iterator[Metric]:
        looks = [look for some in self.looks.values() for look in some]
        found = liveness(looks, self.at_s)
        processes = _gauge("processes", "Stores' processes that are known.", "state")
        processes.add_metric(["alive"], found.alive)
        processes.add_metric(["gone"], found.known - found.alive)
        yield processes
        breakers = _gauge("breakers", "Breakers of processes that report.", "state")
        for state in ("up", "down", "rebuilding"):
            breakers.add_metric([state], found.breakers.get(state, 0))
        yield breakers
        yield _one("reporting_processes", "Living processes that report.", found.reported)
        yield _one("hung_processes", "Processes with an I/O that does not come back.", found.hung)
        claims = _gauge("claims", "Rights to write a page, held or run out.", "state")
        claims.add_metric(["held"], sum(look.claims.held for look in looks))
        claims.add_metric(["orphan"], sum(look.claims.orphans for look in looks))
        yield claims

    def _checks(self) -> Iterator[Metric]:
        looks = [look for some in self.looks.values() for look in some]
        checks = [look.fsck for look in looks if look.fsck is not None]
        yield _one("unchecked_namespaces", "Never checked by fsck.", len(looks) - len(checks))
        unclean = sum(not check.clean for check in checks)
        yield _one("unclean_namespaces", "Whose last fsck found something.", unclean)
        oldest = _gauge("fsck_age_seconds", "Since the oldest of the last checks.")
        if checks:
            oldest.add_metric([], max(0.0, self.at_s - min(check.time_s for check in checks)))
        yield oldest


def _counters(sums: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    for name, text, label, prefix in _FAMILIES:
        family = CounterMetricFamily(f"kvmanager_{name}", text, labels=("tenant", label))
        for tenant, counters in sums.items():
            for value, n in figures.family(counters, prefix).items():
                family.add_metric([tenant, value], n)
        yield family
    fates = CounterMetricFamily(
        "kvmanager_prefetched_pages", "What became of them.", labels=("tenant", "fate")
    )
    for tenant, counters in sums.items():
        for fate in _FATES:
            fates.add_metric([tenant, fate], counters.get(f"prefetch.{fate}", 0))
    yield fates
    for name, text, counter, unit in _PLAIN:
        plain = CounterMetricFamily(f"kvmanager_{name}", text, labels=("tenant",))
        for tenant, counters in sums.items():
            if counter in counters:
                plain.add_metric([tenant], counters[counter] * unit)
        yield plain


def _histograms(sums: Mapping[str, Mapping[str, int]]) -> Iterator[Metric]:
    total = figures.summed(sums.values())
    calls = HistogramMetricFamily(
        "kvmanager_operation_seconds", "Duration of calls.", labels=("kind", "operation")
    )
    for name in sorted({name.rpartition(".")[0] for name in figures.family(total, "op")}):
        octaves: Counter[int] = Counter()
        for n, count in figures.buckets(total, f"op.{name}").items():
            octaves[-(-n // figures.BUCKETS_AN_OCTAVE)] += count
        bounds = [(2.0**n / _US, n) for n in _OCTAVES]
        calls.add_metric(name.split("."), _cumulative(octaves, bounds), None)
    yield calls
    late = CounterMetricFamily(
        "kvmanager_late_calls", "Calls that met their deadline.", labels=("kind", "operation")
    )
    for name, n in sorted(figures.family(total, "late").items()):
        late.add_metric(name.split("."), n)
    yield late
    ages = HistogramMetricFamily(
        "kvmanager_evicted_age_seconds", "Time since last use of evicted pages.", labels=("tenant",)
    )
    bounds = [(2.0**n, n) for n in _AGES]
    for tenant, counters in sums.items():
        ages.add_metric([tenant], _cumulative(figures.buckets(counters, "age"), bounds), None)
    yield ages


def _cumulative(
    counts: Mapping[int, int], bounds: Sequence[tuple[float, int]]
) -> list[tuple[str, float]]:
    """Buckets as Prometheus has them: all up to a bound, by that bound's number."""
    found: list[tuple[str, float]] = [
        (repr(bound), float(sum(n for bucket, n in counts.items() if bucket <= number)))
        for bound, number in bounds
    ]
    return [*found, ("+Inf", float(sum(counts.values())))]


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kvmanager_{name}", text, labels=labels)


def _one(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"kvmanager_{name}", text, value=value)
