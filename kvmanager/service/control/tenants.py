"""/v1/tenants: whose pages there are, and what is set for each."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from fastapi import FastAPI, Path, Request

from kvmanager import keys
from kvmanager.control import history, tenants
from kvmanager.control.census import clock
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.control.overview import DAY_S, lasts_days
from kvmanager.control.quotas import tenants_orphan_bytes
from kvmanager.control.tenants import Settings
from kvmanager.service.access import Grant
from kvmanager.service.codec import Refusal
from kvmanager.service.control.base import PROBLEMS, Control
from kvmanager.service.control.documents import (
    DEFAULT_ROWS,
    Cursor,
    Limit,
    Mode,
    Order,
    Quota,
    TimeToLive,
    page,
)
from kvmanager.service.control.scope import is_for, visible
from kvmanager.service.documents import Document, Done

MAX_AGE_S = 3.0
"""Of what was looked at."""
Name = Annotated[str, Path(min_length=1, max_length=4096)]


class TenantSettings(Order):
    """What is set for a tenant; null: nothing. `quota_bytes`: of all its pages together; `ttl_ms`:
    pages that were not used for so long go; `mode`: what its processes may do."""

    quota_bytes: Quota | None = None
    ttl_ms: TimeToLive | None = None
    mode: Mode | None = None


class TenantView(Document):
    """A tenant: what is set, what it uses, and for how many days its quota lasts if it grows on as
    in the last day (null: that is not known, or never). `orphan_bytes`: about what of `bytes` was
    left by vanished stores, which no quota bounds (null: not looked at yet)."""

    tenant: str
    quota_bytes: int | None
    ttl_ms: int | None
    mode: str | None
    namespaces: int
    pages: int
    bytes: int
    orphan_bytes: int | None
    days_to_full: float | None


class TenantList(Document):
    """Some of them, in the order of their names."""

    tenants: list[TenantView]
    next: str | None


def add(app: FastAPI, control: Control) -> None:
    """Add the routes."""

    @app.get("/v1/tenants", responses=PROBLEMS, tags=["tenants"], summary="Which there are")
    async def list_tenants(
        request: Request, cursor: Cursor = None, limit: Limit = DEFAULT_ROWS
    ) -> TenantList:
        known = await _known(control, control.grant(request))
        some, after = page(sorted(known), str, cursor, limit)
        views = [await _view(control, name, known[name]) for name in some]
        return TenantList(tenants=views, next=after)

    @app.get("/v1/tenants/{name:path}", responses=PROBLEMS, tags=["tenants"], summary="One of them")
    async def get_tenant(request: Request, name: Name) -> TenantView:
        known = await _known(control, control.grant_for(request, name))
        if name not in known:
            raise Refusal(404, "not_found", "there is no such tenant")
        return await _view(control, name, known[name])

    @app.put(
        "/v1/tenants/{name:path}",
        responses=PROBLEMS,
        tags=["tenants"],
        summary="Set its quota, time to live and mode",
    )
    async def set_tenant(request: Request, name: Name, asked: TenantSettings) -> TenantView:
        grant = control.grant_for(request, name)
        await control.run(tenants.enlist(name), b"")
        settings = Settings(asked.quota_bytes, asked.ttl_ms, asked.mode)
        await control.run(tenants.write(name, settings), keys.tenant_tag(name))
        known = await _known(control, grant)
        return await _view(control, name, known.get(name, []))

    @app.delete(
        "/v1/tenants/{name:path}",
        responses=PROBLEMS,
        tags=["tenants"],
        summary="Set nothing for it any more; its pages stay",
    )
    async def reset_tenant(request: Request, name: Name) -> Done:
        control.grant_for(request, name)
        await control.run(tenants.delete(name), keys.tenant_tag(name))
        await control.run(tenants.strike(name), b"")
        return Done()


async def _known(control: Control, grant: Grant) -> dict[str, list[NamespaceRecord]]:
    """The grant's tenants that something is set for, or that have namespaces; and these."""
    known: defaultdict[str, list[NamespaceRecord]] = defaultdict(list)
    for record in await visible(control, grant):
        known[record.tenant].append(record)
    for name in await control.run(tenants.names(), tenants.TENANTS):
        if is_for(grant, name):
            known[name] += []
    return dict(known)


async def _view(control: Control, name: str, records: Sequence[NamespaceRecord]) -> TenantView:
    tag = keys.tenant_tag(name)
    settings = await control.run(tenants.read(name), tag)
    seen = await control.census.read(control.run, MAX_AGE_S)
    looks = seen.looks.get(name, ())
    looked = {record.tag for record in records} <= {look.record.tag for look in looks}
    used = sum(record.bytes for record in records)
    days = None
    if settings.quota_bytes is not None:
        day = await control.run(history.curve(tag, DAY_S, 2), tag)
        now_s = await control.run(clock(), tag)
        days = lasts_days(settings.quota_bytes, used, day, now_s)
    return TenantView(
        tenant=name,
        quota_bytes=settings.quota_bytes,
        ttl_ms=settings.ttl_ms,
        mode=settings.mode,
        namespaces=len(records),
        pages=sum(record.pages for record in records),
        bytes=used,
        orphan_bytes=tenants_orphan_bytes(looks) if looked else None,
        days_to_full=days,
    )
