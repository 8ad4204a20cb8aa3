"""/v1/namespaces: which there are, what is set for them; clearing them."""

from __future__ import annotations

from fastapi import FastAPI, Request

from kvmanager.control.namespaces import MediumRecord, NamespaceRecord
from kvmanager.flow import Flow, answer
from kvmanager.replies import read_epoch
from kvmanager.scripts import Call
from kvmanager.service.control.base import PROBLEMS, READERS, Control
from kvmanager.service.control.documents import (
    DEFAULT_ROWS,
    Cursor,
    Limit,
    Mode,
    NamespaceId,
    Order,
    TimeToLive,
    page,
)
from kvmanager.service.control.scope import found, missing, visible
from kvmanager.service.documents import ClearAnswer, Document


class Identity(Document):
    """What must be equal for the bytes of a page to be interchangeable."""

    model: str
    revision: str
    kv_dtype: str
    layout: str
    page_tokens: int
    page_bytes: int
    layers: list[int]
    kv_heads: list[int]
    token_shard: list[int]
    pool: str
    tenant: str
    salt: str


class MediumOfNamespace(Document):
    """A medium, and what of the namespace lies there. `seen_s`: last heartbeat of a store there,
    since 1970."""

    medium: str
    shared: bool
    pages: int
    bytes: int
    seen_s: int


class NamespaceView(Document):
    """A namespace. `mode` and `ttl_ms` are set for it, and win over those of its tenant; `hits`:
    pages found by lookups; `seen_s`: last heartbeat of any process, since 1970."""

    id: str
    tenant: str
    identity: Identity
    epoch: int
    pages: int
    bytes: int
    stores: int
    pins: int
    hits: int
    seen_s: int
    mode: str | None
    ttl_ms: int | None
    tenant_mode: str | None
    tenant_ttl_ms: int | None
    media: list[MediumOfNamespace]


class NamespaceList(Document):
    """Some of them, in the order of their ids."""

    namespaces: list[NamespaceView]
    next: str | None


class NamespaceSettings(Order):
    """What is set for it; a field that is left out stays as it is, null is as its tenant's."""

    mode: Mode | None = None
    ttl_ms: TimeToLive | None = None


def add(app: FastAPI, control: Control) -> None:
    """Add the routes."""

    @app.get("/v1/namespaces", responses=PROBLEMS, tags=["namespaces"], summary="Which there are")
    async def list_namespaces(
        request: Request, cursor: Cursor = None, limit: Limit = DEFAULT_ROWS
    ) -> NamespaceList:
        records = await visible(control, control.grant(request, READERS))
        some, after = page(records, lambda record: record.id, cursor, limit)
        return NamespaceList(namespaces=[view(record) for record in some], next=after)

    @app.get("/v1/namespaces/{id}", responses=PROBLEMS, tags=["namespaces"], summary="One of them")
    async def get_namespace(request: Request, name: NamespaceId) -> NamespaceView:
        return view(await found(control, control.grant(request, READERS), name))

    @app.patch(
        "/v1/namespaces/{id}",
        responses=PROBLEMS,
        tags=["namespaces"],
        summary="Set its mode or time to live",
    )
    async def set_namespace(
        request: Request, name: NamespaceId, asked: NamespaceSettings
    ) -> NamespaceView:
        grant = control.grant(request)
        record = await found(control, grant, name)
        if not await control.run(_set(record, asked), record.tag):
            raise missing()
        control.roster.expire()
        return view(await found(control, grant, name))

    @app.post(
        "/v1/namespaces/{id}/clear",
        responses=PROBLEMS,
        tags=["namespaces"],
        summary="Void all its pages",
    )
    async def clear_namespace(request: Request, name: NamespaceId) -> ClearAnswer:
        record = await found(control, control.grant(request), name)
        epoch = await control.run(_cleared(record), record.tag)
        control.roster.expire()
        return ClearAnswer(epoch=epoch)


def view(record: NamespaceRecord) -> NamespaceView:
    """A namespace as a document."""
    own = record.namespace
    identity = {name: getattr(own, name) for name in Identity.model_fields}
    ranges = {name: list(value) for name, value in identity.items() if isinstance(value, tuple)}
    plain = {
        name: getattr(record, name)
        for name in NamespaceView.model_fields
        if name not in ("identity", "media")
    }
    return NamespaceView(
        **plain,
        identity=Identity(**{**identity, **ranges}),
        media=[_medium(medium, own.page_bytes) for medium in record.media],
    )


def _medium(medium: MediumRecord, page_bytes: int) -> MediumOfNamespace:
    return MediumOfNamespace(
        medium=medium.uuid.hex(),
        shared=medium.shared,
        pages=medium.pages,
        bytes=medium.pages * page_bytes,
        seen_s=medium.seen_s,
    )


def _set(record: NamespaceRecord, asked: NamespaceSettings) -> Flow[bool]:
    args = [b"fingerprint"]
    for name in sorted(asked.model_fields_set & set(NamespaceSettings.model_fields)):
        value = getattr(asked, name)
        args += [name.encode(), b"" if value is None else str(value).encode()]
    done: int = yield from answer(Call.of("fields", (b"n" + record.tag,), args))
    return done == 1


def _cleared(record: NamespaceRecord) -> Flow[int]:
    return read_epoch((yield from answer(Call.of("clear", (b"n" + record.tag,), ()))))
