"""/v1/stores, /v1/media: where pages lie."""

from __future__ import annotations

from collections import defaultdict

from fastapi import FastAPI, Request

from kvmanager.control.namespaces import MediumRecord, NamespaceRecord, StoreRecord
from kvmanager.control.processes import ProcessRecord
from kvmanager.service.control.base import PROBLEMS, Control
from kvmanager.service.control.documents import DEFAULT_ROWS, Cursor, Limit, page
from kvmanager.service.control.scope import visible, visible_processes
from kvmanager.service.documents import Document


class StoreView(Document):
    """One store of a process. `pages`, `bytes`, `capacity_bytes`: as its process last reported,
    null if it did not; `seen_s`: its last heartbeat, since 1970."""

    store: str
    process: str
    namespace: str
    medium: str
    shared: bool
    epoch: int
    alive: bool
    seen_s: int
    pages: int | None
    bytes: int | None
    capacity_bytes: int | None


class StoreList(Document):
    """Some of them, by namespace."""

    stores: list[StoreView]
    next: str | None


class MediumView(Document):
    """A medium. `pages` and `bytes`: of all its namespaces, as the registry knows them; `seen_s`:
    last heartbeat of a store there, since 1970."""

    medium: str
    shared: bool
    namespaces: list[str]
    pages: int
    bytes: int
    seen_s: int


class MediumList(Document):
    """Some of them, in the order of their uuids."""

    media: list[MediumView]
    next: str | None


def add(app: FastAPI, control: Control) -> None:
    """Add the routes."""

    @app.get("/v1/stores", responses=PROBLEMS, tags=["media"], summary="All stores")
    async def list_stores(
        request: Request, cursor: Cursor = None, limit: Limit = DEFAULT_ROWS
    ) -> StoreList:
        everyone = await visible_processes(control, control.grant(request))
        stores = [store_view(one, store) for one in everyone for store in one.stores]
        stores.sort(key=_key)
        some, after = page(stores, _key, cursor, limit)
        return StoreList(stores=some, next=after)

    @app.get("/v1/media", responses=PROBLEMS, tags=["media"], summary="All media")
    async def list_media(
        request: Request, cursor: Cursor = None, limit: Limit = DEFAULT_ROWS
    ) -> MediumList:
        there: defaultdict[str, list[tuple[NamespaceRecord, MediumRecord]]] = defaultdict(list)
        for record in await visible(control, control.grant(request)):
            for medium in record.media:
                there[medium.uuid.hex()].append((record, medium))
        some, after = page(sorted(there), str, cursor, limit)
        return MediumList(media=[_medium(name, there[name]) for name in some], next=after)


def store_view(process: ProcessRecord, store: StoreRecord) -> StoreView:
    """A store as a document."""
    told = process.gauges.stores if process.gauges else ()
    own = next((gauges for gauges in told if gauges.store == store.store), None)
    return StoreView(
        store=store.store.hex(),
        process=store.process.hex(),
        namespace=process.namespace.id,
        medium=store.medium.hex(),
        shared=store.shared,
        epoch=store.epoch,
        alive=store.alive,
        seen_s=store.seen_s,
        **{name: getattr(own, name, None) for name in ("pages", "bytes", "capacity_bytes")},
    )


def _key(store: StoreView) -> str:
    return f"{store.namespace}.{store.store}"


def _medium(name: str, there: list[tuple[NamespaceRecord, MediumRecord]]) -> MediumView:
    return MediumView(
        medium=name,
        shared=any(medium.shared for _, medium in there),
        namespaces=[record.id for record, _ in there],
        pages=sum(medium.pages for _, medium in there),
        bytes=sum(medium.pages * record.namespace.page_bytes for record, medium in there),
        seen_s=max(medium.seen_s for _, medium in there),
    )
