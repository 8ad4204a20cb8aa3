"""/v1/processes, /v1/servers, /v1/hosts: who there is, and what mode each is in."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import FastAPI, Query, Request

from kvmanager.control import processes
from kvmanager.control.processes import ProcessRecord
from kvmanager.service.codec import Refusal
from kvmanager.service.control.base import PROBLEMS, Control
from kvmanager.service.control.documents import (
    DEFAULT_ROWS,
    Cursor,
    Limit,
    Mode,
    Order,
    UuidPath,
    page,
)
from kvmanager.service.control.roster import read_processes
from kvmanager.service.control.scope import visible, visible_processes
from kvmanager.service.control.stores import StoreView, store_view
from kvmanager.service.documents import Document

_REPORTED = ("pages", "bytes", "kind", "breaker", "hung", "version", "started_s")

OnlyText = Annotated[str | None, Query(max_length=255, description="Only those of this name")]
OnlyAlive = Annotated[bool | None, Query(description="Only those that are there, or are gone")]


class ProcessView(Document):
    """A process in one namespace. `seen_s`: its last heartbeat, since 1970; `mode`: in force;
    `ordered`: of it by itself; from `pages` on: as it last reported, null if it did not."""

    process: str
    namespace: str
    tenant: str
    host: str
    server: str
    rank: int
    alive: bool
    seen_s: int
    mode: str | None
    ordered: str | None
    stores: list[StoreView]
    pages: int | None
    bytes: int | None
    kind: str | None
    breaker: str | None
    hung: bool | None
    version: str | None
    started_s: int | None


class ProcessList(Document):
    """Some of them, by namespace."""

    processes: list[ProcessView]
    next: str | None


class GroupView(Document):
    """The processes of one server, or of one host. `pages` and `bytes`: as those that are there
    reported."""

    name: str
    hosts: list[str]
    servers: list[str]
    ranks: list[int]
    namespaces: list[str]
    processes: int
    alive: int
    seen_s: int
    pages: int
    bytes: int


class ServerList(Document):
    """Some of them, in the order of their names."""

    servers: list[GroupView]
    next: str | None


class HostList(Document):
    """Some of them, in the order of their names."""

    hosts: list[GroupView]
    next: str | None


class ModeAsked(Order):
    """The mode that is ordered of a process; null withdraws the order."""

    mode: Mode | None


def add(app: FastAPI, control: Control) -> None:
    """Add the routes."""

    @app.get("/v1/processes", responses=PROBLEMS, tags=["processes"], summary="Who there is")
    async def list_processes(
        request: Request,
        host: OnlyText = None,
        server: OnlyText = None,
        alive: OnlyAlive = None,
        cursor: Cursor = None,
        limit: Limit = DEFAULT_ROWS,
    ) -> ProcessList:
        wanted = [
            one
            for one in await visible_processes(control, control.grant(request))
            if host in (None, one.host) and server in (None, one.server)
            if alive in (None, one.alive)
        ]
        some, after = page(wanted, _key, cursor, limit)
        return ProcessList(processes=[_view(one) for one in some], next=after)

    @app.get("/v1/servers", responses=PROBLEMS, tags=["processes"], summary="By server")
    async def list_servers(
        request: Request, cursor: Cursor = None, limit: Limit = DEFAULT_ROWS
    ) -> ServerList:
        everyone = await visible_processes(control, control.grant(request))
        groups = _grouped(everyone, lambda one: one.server)
        some, after = page(groups, lambda group: group.name, cursor, limit)
        return ServerList(servers=some, next=after)

    @app.get("/v1/hosts", responses=PROBLEMS, tags=["processes"], summary="By host")
    async def list_hosts(
        request: Request, cursor: Cursor = None, limit: Limit = DEFAULT_ROWS
    ) -> HostList:
        everyone = await visible_processes(control, control.grant(request))
        groups = _grouped(everyone, lambda one: one.host)
        some, after = page(groups, lambda group: group.name, cursor, limit)
        return HostList(hosts=some, next=after)

    @app.put(
        "/v1/processes/{uuid}/mode",
        responses=PROBLEMS,
        tags=["processes"],
        summary="Order a mode of a process",
    )
    async def set_mode(request: Request, name: UuidPath, asked: ModeAsked) -> ProcessView:
        grant = control.grant(request)
        everyone = await read_processes(control.run, await visible(control, grant))
        for one in everyone:
            if one.process.hex() == name:
                break
        else:
            raise Refusal(404, "not_found", "there is no such process")
        tag, process = one.namespace.tag, one.process
        await control.run(processes.order(tag, [process], asked.mode), tag)
        control.roster.expire()
        now = await control.run(processes.of_namespace(one.namespace), tag)
        return _view(next((other for other in now if other.process == process), one))


def _key(one: ProcessRecord) -> str:
    return f"{one.namespace.id}.{one.process.hex()}"


def _view(one: ProcessRecord) -> ProcessView:
    told = {name: getattr(one.gauges, name, None) for name in _REPORTED}
    return ProcessView(
        process=one.process.hex(),
        namespace=one.namespace.id,
        tenant=one.namespace.tenant,
        host=one.host,
        server=one.server,
        rank=one.stores[0].rank,
        alive=one.alive,
        seen_s=one.seen_s,
        mode=one.mode,
        ordered=one.ordered,
        stores=[store_view(one, store) for store in one.stores],
        **told,
    )


def _grouped(
    everyone: Sequence[ProcessRecord], name: Callable[[ProcessRecord], str]
) -> list[GroupView]:
    groups: defaultdict[str, list[ProcessRecord]] = defaultdict(list)
    for one in everyone:
        groups[name(one)].append(one)
    return [_group(name, groups[name]) for name in sorted(groups)]


def _group(name: str, group: Sequence[ProcessRecord]) -> GroupView:
    told = [one.gauges for one in group if one.alive and one.gauges]
    return GroupView(
        name=name,
        hosts=sorted({one.host for one in group}),
        servers=sorted({one.server for one in group}),
        ranks=sorted({one.stores[0].rank for one in group}),
        namespaces=sorted({one.namespace.id for one in group}),
        processes=len(group),
        alive=sum(one.alive for one in group),
        seen_s=max(one.seen_s for one in group),
        pages=sum(gauges.pages for gauges in told),
        bytes=sum(gauges.bytes for gauges in told),
    )
