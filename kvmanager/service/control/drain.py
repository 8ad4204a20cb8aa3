"""/v1/drain: processes that are to write nothing any more, before they are ended."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Annotated

from fastapi import FastAPI, Query, Request
from pydantic import Field, model_validator

from kvmanager.control import processes
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.control.processes import ProcessRecord
from kvmanager.service.access import Grant
from kvmanager.service.codec import Refusal
from kvmanager.service.control.base import PROBLEMS, Control
from kvmanager.service.control.documents import MAX_ROWS, DigestText, Order
from kvmanager.service.control.roster import read_processes
from kvmanager.service.control.scope import visible
from kvmanager.service.documents import Document

DRAINED = "read"
"""The mode: pages that are there can still be read."""
_QUIET = (DRAINED, "off")

Name = Annotated[str, Field(min_length=1, max_length=255)]
NameQuery = Annotated[str | None, Query(min_length=1, max_length=255)]
UuidQuery = Annotated[str | None, Query(pattern="^[0-9a-f]{32}$")]


class DrainAsked(Order):
    """Which processes: one by its uuid, those of a server, or those of a host."""

    process: DigestText | None = None
    server: Name | None = None
    host: Name | None = None

    @model_validator(mode="after")
    def _one(self) -> DrainAsked:
        if [self.process, self.server, self.host].count(None) != 2:
            raise ValueError("name a process, a server or a host")
        return self

    def means(self, one: ProcessRecord) -> bool:
        """Whether a process is among them."""
        return (one.process.hex() == self.process) or (
            (self.server is not None and one.server == self.server)
            or (self.host is not None and one.host == self.host)
        )


class DrainedProcess(Document):
    """A process. `mode`: in force; `ordered`: of it, its namespace or its tenant, which is in force
    from its next heartbeat on; `claims`: pages that it is still writing."""

    process: str
    namespace: str
    host: str
    server: str
    mode: str | None
    ordered: str | None
    claims: int
    drained: bool


class DrainAnswer(Document):
    """Whether all of them have obeyed and write nothing; how many have not; and the first 1,000,
    those that have not before the others."""

    drained: bool
    waiting: int
    processes: list[DrainedProcess]


def add(app: FastAPI, control: Control) -> None:
    """Add the routes."""

    @app.post(
        "/v1/drain",
        responses=PROBLEMS,
        tags=["processes"],
        summary="Let processes write nothing any more; ask until all are drained",
    )
    async def drain(request: Request, asked: DrainAsked) -> DrainAnswer:
        grant = control.grant(request)
        chosen = await _chosen(control, grant, asked)
        awake = [one for one in chosen if one.ordered not in _QUIET]
        for record, group in _by_namespace(awake):
            order = processes.order(record.tag, [one.process for one in group], DRAINED)
            await control.run(order, record.tag)
        control.roster.expire()
        return await _state(control, await _chosen(control, grant, asked))

    @app.get("/v1/drain", responses=PROBLEMS, tags=["processes"], summary="How far that is")
    async def drain_state(
        request: Request,
        process: UuidQuery = None,
        server: NameQuery = None,
        host: NameQuery = None,
    ) -> DrainAnswer:
        asked = _asked(process, server, host)
        return await _state(control, await _chosen(control, control.grant(request), asked))

    @app.delete("/v1/drain", responses=PROBLEMS, tags=["processes"], summary="Let them write again")
    async def undrain(
        request: Request,
        process: UuidQuery = None,
        server: NameQuery = None,
        host: NameQuery = None,
    ) -> DrainAnswer:
        asked, grant = _asked(process, server, host), control.grant(request)
        chosen = await _chosen(control, grant, asked)
        for record, group in _by_namespace(chosen):
            named = [one.process for one in group]
            await control.run(processes.order(record.tag, named, None, DRAINED), record.tag)
        control.roster.expire()
        return await _state(control, await _chosen(control, grant, asked))


def _asked(process: str | None, server: str | None, host: str | None) -> DrainAsked:
    try:
        return DrainAsked(process=process, server=server, host=host)
    except ValueError:
        raise Refusal(422, "invalid", "name a process, a server or a host") from None


async def _chosen(control: Control, grant: Grant, asked: DrainAsked) -> list[ProcessRecord]:
    """Those that are there, as they are now. Raises Refusal where there are none."""
    everyone = await read_processes(control.run, await visible(control, grant))
    chosen = [one for one in everyone if one.alive and asked.means(one)]
    if not chosen:
        raise Refusal(404, "not_found", "there is no such process")
    return chosen


async def _state(control: Control, chosen: Sequence[ProcessRecord]) -> DrainAnswer:
    rows: list[DrainedProcess] = []
    for record, group in _by_namespace(chosen):
        stores = [store for one in group for store in one.stores]
        held = await control.run(processes.claims_held(record, stores), record.tag)
        rows += [_row(one, sum(held[store.store] for store in one.stores)) for one in group]
    rows.sort(key=lambda row: (row.drained, row.namespace, row.process))
    waiting = sum(not row.drained for row in rows)
    return DrainAnswer(drained=not waiting, waiting=waiting, processes=rows[:MAX_ROWS])


def _row(one: ProcessRecord, claims: int) -> DrainedProcess:
    ordered = one.ordered or one.namespace.mode or one.namespace.tenant_mode
    return DrainedProcess(
        process=one.process.hex(),
        namespace=one.namespace.id,
        host=one.host,
        server=one.server,
        mode=one.mode,
        ordered=ordered,
        claims=claims,
        drained=ordered in _QUIET and one.obeyed in _QUIET and claims == 0,
    )


def _by_namespace(
    chosen: Sequence[ProcessRecord],
) -> list[tuple[NamespaceRecord, list[ProcessRecord]]]:
    groups: defaultdict[str, list[ProcessRecord]] = defaultdict(list)
    for one in chosen:
        groups[one.namespace.id].append(one)
    return [(group[0].namespace, group) for group in groups.values()]
