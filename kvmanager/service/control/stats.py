"""/v1/stats: the sums of what processes reported."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request

from kvmanager import figures
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.service.control.base import PROBLEMS, READERS, Control
from kvmanager.service.control.documents import Cursor, page
from kvmanager.service.control.scope import visible
from kvmanager.service.documents import Document

MAX_SUMS = 100
"""Rows of an answer: each is a few hundred numbers."""

By = Annotated[Literal["namespace", "tenant"], Query(description="A row for each")]
Rows = Annotated[int, Query(ge=1, le=MAX_SUMS, description="Rows of an answer, at most")]


class Sums(Document):
    """Since the namespaces were first seen; `counters`: by the names of `kvmanager.figures`."""

    name: str
    namespaces: int
    pages: int
    bytes: int
    hits: int
    counters: dict[str, int]


class SumsList(Document):
    """Some of them, in the order of their names: ids of namespaces, or tenants."""

    sums: list[Sums]
    next: str | None


def add(app: FastAPI, control: Control) -> None:
    """Add the route."""

    @app.get("/v1/stats", responses=PROBLEMS, tags=["stats"], summary="What was counted")
    async def stats(
        request: Request, by: By = "tenant", cursor: Cursor = None, limit: Rows = 20
    ) -> SumsList:
        groups: dict[str, list[NamespaceRecord]] = {}
        for record in await visible(control, control.grant(request, READERS)):
            name = record.id if by == "namespace" else record.tenant
            groups.setdefault(name, []).append(record)
        some, after = page(sorted(groups), str, cursor, limit)
        return SumsList(sums=[await _sums(control, n, groups[n]) for n in some], next=after)


async def _sums(control: Control, name: str, group: list[NamespaceRecord]) -> Sums:
    counted = [await control.run(figures.totals(record.tag), record.tag) for record in group]
    return Sums(
        name=name,
        namespaces=len(group),
        pages=sum(record.pages for record in group),
        bytes=sum(record.bytes for record in group),
        hits=sum(record.hits for record in group),
        counters=dict(sorted(figures.summed(counted).items())),
    )
