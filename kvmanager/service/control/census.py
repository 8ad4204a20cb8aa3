"""What the service last saw of all namespaces: read in the background, shared by all that ask."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kvmanager import keys
from kvmanager.control import census, history, ledger, popularity, tenants
from kvmanager.control.census import Look
from kvmanager.control.ledger import Ledger
from kvmanager.control.overview import DAY_S, MAX_HOTTEST
from kvmanager.control.tenant_view import TenantView
from kvmanager.flow import Flow
from kvmanager.service.control.roster import Run, gathered, read_present

MAX_LOOKS = 1024
"""Namespaces that are looked at: those that were before, then those seen last."""
MAX_TENANTS = 64
MAX_POINTS = 240
"""Samples of all tenants of one answer together."""
_POINTS = 60
_REST = 20
_AT_MOST_ASKED = 64


@dataclass(frozen=True, slots=True)
class Seen:
    """All of it at one moment. `at_s`: seconds of Redis TIME; `quotas`: of tenants that have
    one; `sampled_s`: when a tenant's sums were last kept; `sums`: of all its namespaces, none if
    that is not known now; `left_out`: namespaces that were too many, or did not answer."""

    at_s: float = 0.0
    looks: Mapping[str, Sequence[Look]] = field(default_factory=dict)  # by tenant
    quotas: Mapping[str, int] = field(default_factory=dict)
    sampled_s: Mapping[str, float] = field(default_factory=dict)
    left_out: int = 0
    sums: Mapping[str, Mapping[str, int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Kept:
    """What is kept of a tenant."""

    quota_bytes: int | None
    sampled_s: float | None
    ledger: Ledger


class Census:
    """Reads at most once at a time, however many ask."""

    def __init__(self) -> None:
        self._seen = Seen()
        self._read_s = float("-inf")  # of the monotonic clock
        self._took_s = 0.0
        self._tags: Sequence[bytes] = ()
        self._looked: frozenset[bytes] = frozenset()
        self._reading = asyncio.Lock()

    @property
    def seen(self) -> Seen:
        """What was seen last, however old."""
        return self._seen

    @property
    def age_s(self) -> float:
        """Of what was seen last; infinite before the first look."""
        return time.monotonic() - self._read_s

    @property
    def rest_s(self) -> float:
        """How long to rest between two looks, so that they take a small share of the time however
        many namespaces there are."""
        return _REST * self._took_s

    async def read(self, run: Run, max_age_s: float) -> Seen:
        """What was seen so long ago at most, or as long as a rest is. Raises what `run` does."""
        async with self._reading:
            if self.age_s > max(max_age_s, self.rest_s):
                began_s = time.monotonic()
                self._seen = await self._look(run)
                self._read_s = time.monotonic()
                self._took_s = self._read_s - began_s
            return self._seen

    async def _look(self, run: Run) -> Seen:
        present = await read_present(run, self._tags)
        records = sorted(present.records, key=lambda r: (r.tag not in self._looked, -r.seen_s))
        chosen = records[:MAX_LOOKS]
        answers = await gathered(run, chosen, census.look_or_none, lambda record: record.tag)
        looks: defaultdict[str, list[Look]] = defaultdict(list)
        for look in answers:
            if look is not None:
                looks[look.record.tenant].append(look)
        names = sorted(looks)
        kept = dict(zip(names, await gathered(run, names, _kept, keys.tenant_tag), strict=True))
        known = {name: one for name, one in kept.items() if one is not None}
        self._tags, self._looked = present.tags, frozenset(record.tag for record in chosen)
        return Seen(
            await self._clock(run, present.tags),
            dict(looks),
            {n: one.quota_bytes for n, one in known.items() if one.quota_bytes is not None},
            {n: one.sampled_s for n, one in known.items() if one.sampled_s is not None},
            len(records) - len(chosen) + len(present.silent),
            {name: self._sums(name, looks[name], kept[name]) for name in names},
        )

    def _sums(self, name: str, looks: Sequence[Look], kept: _Kept | None) -> Mapping[str, int]:
        if kept is None:
            return self._seen.sums.get(name, {})
        return kept.ledger.total({look.record.tag: look.sums for look in looks})

    async def _clock(self, run: Run, tags: Sequence[bytes]) -> float:
        """Of whichever shard answers first."""
        for tag in tags[:_AT_MOST_ASKED]:
            answer = await gathered(run, [tag], lambda _tag: census.clock(), lambda tag: tag)
            if answer[0] is not None:
                return answer[0]
        return await run(census.clock(), keys.TAGS)


async def views(run: Run, seen: Seen, names: Iterable[str], window_s: int) -> list[TenantView]:
    """Some of the tenants as the overview wants them, those that use most first; those of a shard
    that does not answer are left out."""
    chosen = sorted(names, key=lambda name: (-_used(seen, name), name))[:MAX_TENANTS]
    points = max(2, min(_POINTS, MAX_POINTS // max(1, len(chosen))))

    def read(name: str) -> Flow[TenantView]:
        tag = keys.tenant_tag(name)
        samples = yield from history.curve(tag, window_s, points)
        day = yield from history.curve(tag, DAY_S, 2)
        hottest = yield from popularity.hottest(tag, MAX_HOTTEST)
        looks, quota, sums = seen.looks.get(name, ()), seen.quotas.get(name), seen.sums.get(name)
        return TenantView(name, looks, quota, samples, day, hottest, sums)

    read_ones = await gathered(run, chosen, read, keys.tenant_tag)
    return [view for view in read_ones if view is not None]


def _used(seen: Seen, tenant: str) -> int:
    return sum(look.record.bytes for look in seen.looks.get(tenant, ()))


def _kept(tenant: str) -> Flow[_Kept]:
    settings = yield from tenants.read(tenant)
    tag = keys.tenant_tag(tenant)
    last = yield from history.curve(tag, 1.0, 2)
    known = yield from ledger.read(tag)
    return _Kept(settings.quota_bytes, last[-1].time_s if last else None, known)
