"""Shares of a tenant's quota: how much each of its live stores may keep.

Only live stores can give pages up, so shares are of what they keep. What vanished stores left on a
medium that is still in use is counted apart, and bounded by what sweeps it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgpack

from kvmanager import reports
from kvmanager.control import namespaces
from kvmanager.control.census import Look
from kvmanager.control.leases import Lease
from kvmanager.control.namespaces import NamespaceRecord, StoreRecord, members, number
from kvmanager.control.tenants import Settings
from kvmanager.flow import Flow, answer
from kvmanager.scripts import Call

_STEP = 256


@dataclass(frozen=True, slots=True)
class Held:
    """A live store, in bytes. `reported`: what it keeps, up to 10 s ago, None if it has not told;
    `untold`: what lies on its medium and no live store reported, which it may have written since;
    `limit`: what it was last ordered to keep at most."""

    reported: int | None
    untold: int = 0
    limit: int | None = None


def limits(quota_bytes: int, usage_bytes: int, stores: Mapping[bytes, Held]) -> dict[bytes, int]:
    """Of each live store of a tenant, by its uuid; the quota together. `usage_bytes`: of the tenant
    as the registry knows, what vanished stores left included.

    What stores keep comes first, what they may have written since they told after that, and what is
    still free by equal shares. A tenant that is over its quota gives up what it keeps beyond that,
    each store the same part.
    """
    least = {store: _least(held, quota_bytes // len(stores)) for store, held in stores.items()}
    over = usage_bytes > quota_bytes
    slack = {store: 0 if over else _slack(stores[store], least[store]) for store in stores}
    kept, room = _parts(quota_bytes, sum(least.values()))
    new, free = _parts(room, sum(slack.values()))
    equal = free // max(1, len(stores))
    return {s: int(least[s] * kept) + int(slack[s] * new) + equal for s in stores}


def _least(held: Held, equal: int) -> int:
    """That a store keeps for sure; one that has not told may as well have found all on its medium
    there, so no more than an `equal` share is believed."""
    return min(held.untold, equal) if held.reported is None else held.reported


def _slack(held: Held, least: int) -> int:
    """What a store may keep beyond that."""
    most = (held.reported or 0) + held.untold
    return max(0, (most if held.limit is None else min(most, held.limit)) - least)


def _parts(room: int, wanted: int) -> tuple[float, int]:
    """The part of what is wanted that there is room for, and the room that is left."""
    return min(1.0, room / wanted) if wanted > 0 else 1.0, max(0, room - wanted)


def kept_by_stores(record: NamespaceRecord) -> Flow[dict[bytes, Held]]:
    """The live stores of a namespace."""
    live = [member for member in (yield from members(record.tag)) if member.alive]
    told = yield from reports.records(record.tag, sorted({member.process for member in live}))
    ordered = yield from _ordered(record.tag, [member.store for member in live])
    reported = _reported(told.values())
    untold = untold_bytes(record, live, reported)
    silent = Counter(member.medium_id for member in live if member.store not in reported)
    return {
        member.store: Held(
            reported.get(member.store),
            untold.get(member.medium_id, 0)
            // (1 if member.store in reported else silent[member.medium_id]),
            ordered.get(member.store),
        )
        for member in live
    }


def orphan_bytes(
    record: NamespaceRecord, stores: Iterable[StoreRecord], told: Iterable[reports.Record]
) -> int:
    """About what vanished stores left in a namespace; it counts for nobody's share. It is not told
    from what was written since the last reports, up to 10 s ago, and not counted on a medium with a
    live store that has not reported."""
    reported = _reported(told)
    live = [store for store in stores if store.alive]
    silent = {store.medium_id for store in live if store.store not in reported}
    untold = untold_bytes(record, live, reported)
    return sum(size for medium, size in untold.items() if medium not in silent)


def tenants_orphan_bytes(looks: Iterable[Look]) -> int:
    """The same of all namespaces of a tenant."""
    return sum(orphan_bytes(one.record, one.stores, one.records.values()) for one in looks)


def untold_bytes(
    record: NamespaceRecord, live: Iterable[StoreRecord], reported: Mapping[bytes, int]
) -> dict[bytes, int]:
    """What lies on each medium, by its id, beyond what its live stores reported."""
    there = Counter({m.id: m.pages * record.namespace.page_bytes for m in record.media})
    for store in live:
        there[store.medium_id] -= reported.get(store.store, 0)
    return {medium: max(0, size) for medium, size in there.items()}


def _reported(told: Iterable[reports.Record]) -> dict[bytes, int]:
    return {s.store: max(0, s.bytes) for one in told for s in one.gauges.stores}


def _ordered(tag: bytes, stores: Sequence[bytes]) -> Flow[dict[bytes, int]]:
    """The limits that are in force."""
    found: dict[bytes, int] = {}
    for start in range(0, len(stores), _STEP):
        some = stores[start : start + _STEP]
        values = namespaces.unpacked((yield from answer(Call.of("values", (b"x" + tag,), some))))
        found |= {s: int(v) for s, v in zip(some, values, strict=True) if number(v) is not None}
    return found


def settle(
    lease: Lease, record: NamespaceRecord, settings: Settings, shares: Mapping[bytes, int]
) -> Flow[None]:
    """Let a namespace have what is set for its tenant. Raises LeaseLost."""
    flat: Sequence[object] = [part for share in shares.items() for part in share]
    packed: bytes = msgpack.packb(flat, use_bin_type=False)
    ttl = b"" if settings.ttl_ms is None else b"%d" % settings.ttl_ms
    args = ((settings.mode or "").encode(), ttl, packed)
    yield from lease.act("settle", (b"n" + record.tag, b"x" + record.tag), args)


def unsettled(record: NamespaceRecord, settings: Settings) -> bool:
    """Whether there is anything to settle."""
    same = (record.tenant_mode, record.tenant_ttl_ms) == (settings.mode, settings.ttl_ms)
    return not same or settings.quota_bytes is not None or record.limited > 0
