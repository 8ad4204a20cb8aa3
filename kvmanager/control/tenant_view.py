"""What is known of one tenant, and how it went over time."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from kvmanager import figures
from kvmanager.control import overview_model as m
from kvmanager.control.census import Look
from kvmanager.control.history import Sample, increase
from kvmanager.control.namespaces import StoreRecord
from kvmanager.control.popularity import Prefix


@dataclass(frozen=True)
class TenantView:
    """What is known of one tenant. `samples`: of the window; `day`: of the last day; both with the
    oldest first; `sums`: of all its namespaces, those that went included; None: of the looks."""

    name: str
    looks: Sequence[Look]
    quota_bytes: int | None = None
    samples: Sequence[Sample] = ()
    day: Sequence[Sample] = ()
    hottest: Sequence[Prefix] = ()
    sums: Mapping[str, int] | None = None

    @cached_property
    def now(self) -> Sample:
        """What would be kept of it now."""
        sums = sums_of(self.looks) if self.sums is None else self.sums
        return sample_of(self.looks, sums, 0.0)


def sums_of(looks: Iterable[Look]) -> dict[str, int]:
    """The sums of several namespaces as one."""
    return figures.summed(look.sums for look in looks)


def sample_of(looks: Sequence[Look], sums: Mapping[str, int], time_s: float) -> Sample:
    """What is kept of a tenant's namespaces at one moment."""
    return Sample(
        time_s,
        sums,
        sum(look.record.pages for look in looks),
        sum(look.record.bytes for look in looks),
        len({store.process for look in looks for store in look.stores if _is_process(store)}),
    )


def _is_process(store: StoreRecord) -> bool:
    return store.alive and not store.unattended


def curve(views: Sequence[TenantView], now_s: float) -> list[m.Span]:
    """What happened from sample to sample, and from the last one until now if that is as long:
    processes report every ten seconds, and less than that would look like a pause."""
    longest = max((view.samples for view in views), key=len, default=())
    times = [sample.time_s for sample in longest]
    if not times:
        return []
    columns = [_Column(view) for view in views]
    points = [_merged(column.at(time_s) for column in columns) for time_s in times]
    usual_s = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else 0.0
    if now_s - times[-1] >= usual_s / 2:
        points.append(_merged(view.now for view in views))
        times.append(now_s)
    return [
        _span(before, after, begin, end)
        for before, after, begin, end in zip(points, points[1:], times, times[1:], strict=False)
        if end > begin
    ]


class _Column:
    """A tenant's samples by time."""

    def __init__(self, view: TenantView) -> None:
        self._view = view
        self._times = [sample.time_s for sample in view.samples]

    def at(self, time_s: float) -> Sample:
        """The nearest one: tenants are sampled one after another."""
        if not self._times:
            return self._view.now
        after = min(bisect_left(self._times, time_s), len(self._times) - 1)
        before = max(after - 1, 0)
        nearer = time_s - self._times[before] < self._times[after] - time_s
        return self._view.samples[before if nearer else after]


def _merged(samples: Iterable[Sample]) -> Sample:
    found = list(samples)
    if len(found) == 1:
        return found[0]
    return Sample(
        max((sample.time_s for sample in found), default=0.0),
        figures.summed(sample.sums for sample in found),
        sum(sample.pages for sample in found),
        sum(sample.bytes for sample in found),
        sum(sample.alive for sample in found),
    )


def _span(before: Sample, after: Sample, begin_s: float, end_s: float) -> m.Span:
    grown = increase(after.sums, before.sums)
    gets: Counter[int] = Counter()
    for name, n in grown.items():
        if name.startswith("op.") and ".get." in name:
            gets[int(name.rpartition(".")[2])] += n
    p99_us = figures.quantile(gets, 0.99)
    return m.Span(
        begin_s,
        end_s,
        {source: grown.get(f"tokens.{source}") for source in figures.SOURCES},
        grown.get("get.pages", 0),
        grown.get("get.hits", 0),
        grown.get("get.bytes", 0),
        grown.get("put.bytes", 0),
        after.bytes,
        after.alive,
        None if p99_us is None else p99_us / 1e6,
    )
