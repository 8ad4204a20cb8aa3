"""Shares of a tenant's quota: how much each of its stores may keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgpack

from kvmanager import reports
from kvmanager.flow import Flow
from kvmanager.leases import Lease
from kvmanager.namespaces import NamespaceRecord, members
from kvmanager.tenants import Settings


def limits(quota_bytes: int, usage_bytes: int, stores: Mapping[bytes, int]) -> dict[bytes, int]:
    """Of each live store, by its uuid, given what each keeps (bytes). `usage_bytes`: of the tenant,
    what vanished processes left included.

    Where the quota is exceeded all give the same part of theirs; what is free is for whoever comes
    first, but by equal shares, so that all of them together stay below it.
    """
    free = max(0, quota_bytes - usage_bytes) // max(1, len(stores))
    kept = min(1.0, quota_bytes / usage_bytes) if usage_bytes > 0 else 1.0
    return {store: int(used * kept) + free for store, used in stores.items()}


def kept_by_stores(record: NamespaceRecord) -> Flow[dict[bytes, int]]:
    """What each live store of a namespace keeps (bytes): as its process reported, or else an equal
    share of what lies on its medium."""
    live = [member for member in (yield from members(record.tag)) if member.alive]
    told = yield from reports.records(record.tag, sorted({member.process for member in live}))
    reported = {s.store: s.bytes for one in told.values() for s in one.gauges.stores}
    sharers = Counter(member.medium_id for member in live)
    pages = {medium.id: medium.pages for medium in record.media}
    page_bytes = record.namespace.page_bytes
    return {
        member.store: reported.get(
            member.store,
            pages.get(member.medium_id, 0) * page_bytes // sharers[member.medium_id],
        )
        for member in live
    }


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
