"""Lets namespaces have what is set for their tenants: modes, times to live, shares of quotas."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Sequence
from functools import partial

from hicache_backends.errors import RegistryRefused
from kvmanager import keys
from kvmanager.control import quotas, tenants
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.control.quotas import Held
from kvmanager.control.tenants import Settings
from kvmanager.service.control.roster import read_present
from kvmanager.service.loops.each import each
from kvmanager.service.loops.loop import Worker

_log = logging.getLogger(__name__)


class Settling:
    """The task. What owners are ordered is in the reply to their next heartbeat."""

    def __init__(self, worker: Worker) -> None:
        self.every_s = worker.options.settle_every_s
        self._worker = worker
        self._tags: Sequence[bytes] = ()
        self._tenants: dict[bytes, str] = {}

    async def step(self) -> None:
        """All namespaces of all tenants."""
        present = await read_present(self._worker.run, self._tags)
        self._tags = present.tags
        by_tenant: defaultdict[str, list[NamespaceRecord]] = defaultdict(list)
        for record in present.records:
            by_tenant[record.tenant].append(record)
        silent = {tag: self._tenants[tag] for tag in present.silent if tag in self._tenants}
        self._tenants = {r.tag: r.tenant for r in present.records} | silent
        waiting = frozenset(silent.values())
        await each(by_tenant, lambda tenant: self._tenant(tenant, by_tenant[tenant], waiting))

    async def _tenant(
        self, tenant: str, records: Sequence[NamespaceRecord], waiting: frozenset[str]
    ) -> None:
        """`waiting`: tenants of whose namespaces some cannot be asked now. Their quotas stay shared
        as they are, for those stores keep theirs."""
        settings = await self._worker.run(tenants.read(tenant), keys.tenant_tag(tenant))
        if settings.quota_bytes is not None and tenant in waiting:
            return
        if not any(quotas.unsettled(record, settings) for record in records):
            return
        shares = await self._shares(records, settings.quota_bytes)
        await each(records, partial(self._settle, settings, shares))

    async def _shares(
        self, records: Sequence[NamespaceRecord], quota_bytes: int | None
    ) -> dict[bytes, dict[bytes, int]]:
        """The limits of each namespace's stores, by its tag; none of one that cannot be read."""
        if quota_bytes is None:
            return {record.tag: {} for record in records}
        held: dict[bytes, dict[bytes, Held]] = {}
        for record in records:
            try:
                held[record.tag] = await self._worker.run(quotas.kept_by_stores(record), record.tag)
            except RegistryRefused as error:  # one that is broken must not stop the others
                _log.warning("the namespace %s: %s", record.id, error)
        usage = sum(record.bytes for record in records)
        every = {store: one for some in held.values() for store, one in some.items()}
        limits = quotas.limits(quota_bytes, usage, every)
        return {tag: {store: limits[store] for store in some} for tag, some in held.items()}

    async def _settle(
        self,
        settings: Settings,
        shares: dict[bytes, dict[bytes, int]],
        record: NamespaceRecord,
    ) -> None:
        if record.tag not in shares or not quotas.unsettled(record, settings):
            return
        lease = await self._worker.lead(record.tag, b"settle", self.every_s)
        if lease is not None:
            flow = quotas.settle(lease, record, settings, shares[record.tag])
            await self._worker.run(flow, record.tag)
