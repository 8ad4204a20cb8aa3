"""What the service last saw of all namespaces: read in the background, shared by all that ask."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from kvmanager import census, history, keys, popularity, tenants
from kvmanager.census import Look
from kvmanager.flow import Flow
from kvmanager.overview import DAY_S, MAX_HOTTEST
from kvmanager.service.control.roster import Run, read_all
from kvmanager.tenant_view import TenantView

MAX_LOOKS = 1024
"""Namespaces that are looked at; those seen last come first."""
MAX_TENANTS = 64
MAX_POINTS = 240
"""Samples of all tenants of one answer together."""
_POINTS = 60
_AT_ONCE = 8
_REST = 20

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, slots=True)
class Seen:
    """All of it at one moment. `at_s`: seconds of Redis TIME; `quotas`: of tenants that have
    one; `sampled_s`: when a tenant's sums were last kept."""

    at_s: float = 0.0
    looks: Mapping[str, Sequence[Look]] = field(default_factory=dict)  # by tenant
    quotas: Mapping[str, int] = field(default_factory=dict)
    sampled_s: Mapping[str, float] = field(default_factory=dict)
    left_out: int = 0


class Census:
    """Reads at most once at a time, however many ask."""

    def __init__(self) -> None:
        self._seen = Seen()
        self._read_s = float("-inf")  # of the monotonic clock
        self._took_s = 0.0
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
        records = await read_all(run)
        chosen = sorted(records, key=lambda record: -record.seen_s)[:MAX_LOOKS]
        at_s = await run(census.clock(), b"")
        looks: defaultdict[str, list[Look]] = defaultdict(list)
        for look in await gathered(run, chosen, census.look_or_none, lambda record: record.tag):
            if look is not None:
                looks[look.record.tenant].append(look)
        names = sorted(looks)
        kept = dict(zip(names, await gathered(run, names, _kept, keys.tenant_tag), strict=True))
        quotas = {name: quota for name, (quota, _) in kept.items() if quota is not None}
        sampled = {name: last_s for name, (_, last_s) in kept.items() if last_s is not None}
        return Seen(at_s, dict(looks), quotas, sampled, len(records) - len(chosen))


async def views(run: Run, seen: Seen, names: Iterable[str], window_s: int) -> list[TenantView]:
    """Some of the tenants as the overview wants them, those that use most first."""
    chosen = sorted(names, key=lambda name: (-_used(seen, name), name))[:MAX_TENANTS]
    points = max(2, min(_POINTS, MAX_POINTS // max(1, len(chosen))))

    def read(name: str) -> Flow[TenantView]:
        tag = keys.tenant_tag(name)
        samples = yield from history.curve(tag, window_s, points)
        day = yield from history.curve(tag, DAY_S, 2)
        hottest = yield from popularity.hottest(tag, MAX_HOTTEST)
        looks = seen.looks.get(name, ())
        return TenantView(name, looks, seen.quotas.get(name), samples, day, hottest)

    return await gathered(run, chosen, read, keys.tenant_tag)


async def gathered(
    run: Run, things: Sequence[A], flow: Callable[[A], Flow[B]], tag: Callable[[A], bytes]
) -> list[B]:
    """The flow of each, a few at once, in order. Raises what `run` does."""
    done: list[B] = []
    for start in range(0, len(things), _AT_ONCE):
        some = things[start : start + _AT_ONCE]
        done += await asyncio.gather(*(run(flow(thing), tag(thing)) for thing in some))
    return done


def _used(seen: Seen, tenant: str) -> int:
    return sum(look.record.bytes for look in seen.looks.get(tenant, ()))


def _kept(tenant: str) -> Flow[tuple[int | None, float | None]]:
    """A tenant's quota, and when its sums were last kept."""
    settings = yield from tenants.read(tenant)
    last = yield from history.curve(keys.tenant_tag(tenant), 1.0, 2)
    return settings.quota_bytes, last[-1].time_s if last else None
