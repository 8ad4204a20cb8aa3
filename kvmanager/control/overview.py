"""From looks at namespaces, samples of their sums and settings to the document of `overview_model`.

Pure functions: what is read, and when, is the caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvmanager import figures
from kvmanager.control import overview_model as m
from kvmanager.control.census import Look
from kvmanager.control.history import Sample, increase, resolution
from kvmanager.control.overview_parts import latencies, liveness, worth
from kvmanager.control.quotas import tenants_orphan_bytes
from kvmanager.control.tenant_view import TenantView, curve

DAY_S = 86_400.0
MIN_GROWTH_S = 3600.0
"""Growth is not told from less."""
MAX_HOTTEST = 20
MAX_FSCK = 50


@dataclass(frozen=True, slots=True)
class Counted:
    """What was counted within the window. `ever`: the same sums since the beginning; a name that is
    not among them is unknown if only engines tell it, and 0 where anybody `reported`."""

    window: Mapping[str, int]
    ever: Mapping[str, int]
    reported: bool

    def own(self, name: str) -> int | None:
        """A counter that every process keeps."""
        return self.window.get(name, 0) if self.reported else None

    def told(self, name: str) -> int | None:
        """A counter that only some engines can keep."""
        return self.window.get(name, 0) if name in self.ever else None

    def family(self, prefix: str) -> m.Counts:
        """Those of a family that are not 0, the largest first."""
        found = figures.family(self.window, prefix)
        return {name: n for name, n in Counter(found).most_common() if n > 0}


@dataclass(frozen=True, slots=True)
class Asked:
    """What the document is about. `tenants`: all that could be asked for; `left_out`: namespaces
    that were too many to look at."""

    tenant: str | None
    tenants: Sequence[str]
    window_s: int
    as_of_s: float
    left_out: int = 0


def compose(views: Sequence[TenantView], asked: Asked) -> m.Overview:
    """The document."""
    looks = [look for view in views for look in view.looks]
    counted = count(views, asked)
    return m.Overview(
        as_of_s=asked.as_of_s,
        window_s=asked.window_s,
        covered_s=_covered_s(views, asked),
        tenant=asked.tenant,
        tenants=list(asked.tenants),
        namespaces=len(looks),
        left_out=asked.left_out,
        served=_served(counted),
        pages=m.Pages(
            counted.own("get.pages"),
            counted.own("get.hits"),
            counted.family("miss"),
            counted.own("exists.pages"),
            counted.own("exists.found"),
            counted.family("absent"),
        ),
        worth=worth(counted.window, counted.ever, looks),
        latency=latencies(counted.window),
        moved=m.Moved(counted.own("get.bytes"), counted.own("put.bytes")),
        space=[space(view, asked.as_of_s) for view in views],
        ages=_ages(counted),
        stored=_stored(counted),
        prefetch=_prefetch(counted),
        liveness=liveness(looks, asked.as_of_s),
        claims=_claims(looks),
        hottest=_hottest(views),
        integrity=_integrity(counted, looks),
        curve=curve(views, asked.as_of_s),
    )


def count(views: Sequence[TenantView], asked: Asked) -> Counted:
    """What was counted within the window; since the beginning of tenants that are younger."""
    total: Counter[str] = Counter()
    ever: Counter[str] = Counter()
    for view in views:
        now = view.now.sums
        ever.update(now)
        total.update(increase(now, view.samples[0].sums if _covered(view, asked) else {}))
    reported = bool(ever) or any(look.records for view in views for look in view.looks)
    return Counted(total, ever, reported)


def space(view: TenantView, now_s: float) -> m.Space:
    """What a tenant uses, and for how long its quota lasts if it grows on as it did."""
    used = sum(look.record.bytes for look in view.looks)
    growth = _growth(view.day, used, now_s)
    days = None
    if view.quota_bytes is not None:
        days = lasts_days(view.quota_bytes, used, view.day, now_s)
    return m.Space(
        view.name,
        len(view.looks),
        sum(look.record.pages for look in view.looks),
        used,
        tenants_orphan_bytes(view.looks),
        view.quota_bytes,
        growth,
        days,
    )


def _covered(view: TenantView, asked: Asked) -> bool:
    """Whether a tenant's samples reach back to where the window begins."""
    begin_s = asked.as_of_s - asked.window_s + resolution(asked.window_s).step_s
    return bool(view.samples) and view.samples[0].time_s <= begin_s


def _covered_s(views: Sequence[TenantView], asked: Asked) -> float | None:
    begins = [view.samples[0].time_s for view in views if _covered(view, asked)]
    return asked.as_of_s - min(begins) if begins else None


def lasts_days(quota_bytes: int, used: int, day: Sequence[Sample], now_s: float) -> float | None:
    """Days until a quota is full; None if that is not known, or never. `day`: of the last day."""
    growth = _growth(day, used, now_s)
    if quota_bytes <= used:
        return 0.0
    return (quota_bytes - used) / growth if growth is not None and growth > 0 else None


def _growth(day: Sequence[Sample], used: int, now_s: float) -> float | None:
    """Bytes a day."""
    if not day or now_s - day[0].time_s < MIN_GROWTH_S:
        return None
    return (used - day[0].bytes) / (now_s - day[0].time_s) * DAY_S


def _served(counted: Counted) -> m.Served:
    known = {source: counted.told(f"tokens.{source}") for source in figures.SOURCES}
    if known["l3"] is None and any(n is not None for n in known.values()):
        known["l3"] = 0  # where engines tell at all they tell that; so far there was none
    told = [n for n in known.values() if n is not None]
    return m.Served(**known, total=sum(told) if told else None)


def _ages(counted: Counted) -> m.Ages:
    buckets = {n: pages for n, pages in figures.buckets(counted.window, "age").items() if pages > 0}
    listed = [(float(2**n), pages) for n, pages in sorted(buckets.items())]
    return m.Ages(sum(buckets.values()), figures.age_quantile(buckets, 0.5), listed)


def _stored(counted: Counted) -> m.Stored:
    return m.Stored(
        counted.own("put.pages"),
        counted.own("put.stored"),
        counted.own("put.existed"),
        counted.family("refused"),
        counted.family("evicted"),
    )


def _prefetch(counted: Counted) -> m.Prefetch:
    names = ("pages", "used", "unfulfilled", "wasted", "cancelled")
    return m.Prefetch(*(counted.own(f"prefetch.{name}") for name in names))


def _claims(looks: Sequence[Look]) -> m.Claims:
    return m.Claims(
        sum(look.claims.held for look in looks),
        sum(look.claims.orphans for look in looks),
        all(look.claims.whole for look in looks),
    )


def _hottest(views: Sequence[TenantView]) -> list[m.Hottest]:
    named = {look.record.tag: look.record for view in views for look in view.looks}
    found = [
        m.Hottest(
            prefix.digest.hex(),
            named[prefix.tag].id,
            view.name,
            named[prefix.tag].namespace.model,
            round(prefix.loads, 2),
            prefix.pages,
        )
        for view in views
        for prefix in view.hottest
        if prefix.tag in named
    ]
    return sorted(found, key=lambda one: -one.loads)[:MAX_HOTTEST]


def _integrity(counted: Counted, looks: Sequence[Look]) -> m.Integrity:
    checks = [
        m.Fsck(
            look.record.id,
            look.record.tenant,
            look.record.namespace.model,
            look.fsck.time_s,
            look.fsck.clean,
            dict(look.fsck.found),
            look.fsck.repaired,
            look.fsck.media,
            look.fsck.unseen,
        )
        for look in looks
        if look.fsck is not None
    ]
    checks.sort(key=lambda check: (check.clean, not check.unseen, -check.time_s))
    return m.Integrity(
        counted.own("integrity.checksum"),
        counted.own("integrity.stale"),
        counted.own("integrity.reported"),
        len(checks),
        len(looks),
        checks[:MAX_FSCK],
    )
