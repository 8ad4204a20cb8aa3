"""Lets namespaces have what is set for their tenants: modes, times to live, shares of quotas."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from kvmanager import keys, quotas, tenants
from kvmanager.leases import LeaseLost
from kvmanager.namespaces import NamespaceRecord
from kvmanager.service.control.roster import read_all
from kvmanager.service.loops.loop import Worker
from kvmanager.tenants import Settings

_NOTHING = Settings()


class Settling:
    """The task. What owners are ordered is in the reply to their next heartbeat."""

    def __init__(self, worker: Worker) -> None:
        self.every_s = worker.options.settle_every_s
        self._worker = worker

    async def step(self) -> None:
        """All namespaces of all tenants."""
        run = self._worker.run
        named = set(await run(tenants.names(), tenants.TENANTS))
        by_tenant: defaultdict[str, list[NamespaceRecord]] = defaultdict(list)
        for record in await read_all(run):
            by_tenant[record.tenant].append(record)
        for tenant, records in by_tenant.items():
            settings = _NOTHING
            if tenant in named:
                settings = await run(tenants.read(tenant), keys.tenant_tag(tenant))
            if any(quotas.unsettled(record, settings) for record in records):
                await self._settle(records, settings)

    async def _settle(self, records: Sequence[NamespaceRecord], settings: Settings) -> None:
        shares: list[dict[bytes, int]] = [{} for _ in records]
        if settings.quota_bytes is not None:
            kept = [await self._worker.run(quotas.kept_by_stores(r), r.tag) for r in records]
            usage = sum(record.bytes for record in records)
            every = {store: used for one in kept for store, used in one.items()}
            limits = quotas.limits(settings.quota_bytes, usage, every)
            shares = [{store: limits[store] for store in one} for one in kept]
        for record, share in zip(records, shares, strict=True):
            lease = await self._worker.lead(record.tag, b"settle", self.every_s)
            if lease is None or not quotas.unsettled(record, settings):
                continue
            try:
                await self._worker.run(quotas.settle(lease, record, settings, share), record.tag)
            except LeaseLost:
                continue  # another service was faster
