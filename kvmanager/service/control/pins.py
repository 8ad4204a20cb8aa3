"""/v1/namespaces/{id}/pins: pages that are to stay."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Request
from pydantic import Field

from hicache_backends.identity import page_digests
from kvmanager.control import pins
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.model import MAX_KEYS
from kvmanager.service.codec import Refusal
from kvmanager.service.control.base import PROBLEMS, Control
from kvmanager.service.control.documents import (
    DEFAULT_ROWS,
    Cursor,
    DigestText,
    Limit,
    NamespaceId,
    Order,
    page,
)
from kvmanager.service.control.scope import found
from kvmanager.service.documents import Document

PageHash = Annotated[str, Field(min_length=1, max_length=256)]


class PinnedPages(Order):
    """Pages by the chained hashes that the engine calls them by, or by their digests; or both."""

    hashes: Annotated[list[PageHash], Field(default_factory=list, max_length=MAX_KEYS)]
    digests: Annotated[list[DigestText], Field(default_factory=list, max_length=MAX_KEYS)]

    def named(self, record: NamespaceRecord) -> list[bytes]:
        """Their digests."""
        known = [bytes.fromhex(digest) for digest in self.digests]
        return page_digests(record.namespace.fingerprint, self.hashes) + known


class PinsAsked(PinnedPages):
    """Pages to pin, for how long from now. A pin that lasts longer is left."""

    ttl_s: Annotated[int, Field(ge=1, le=pins.MAX_PIN_S)]


class PinsAnswer(Document):
    """How many pages of the namespace are pinned now."""

    pins: int


class UnpinAnswer(Document):
    """How many pins were ended."""

    ended: int


class Pin(Document):
    """A page, and until when it is kept (seconds since 1970)."""

    digest: str
    until_s: int


class PinList(Document):
    """Some of them, in the order of their digests."""

    pins: list[Pin]
    next: str | None


def add(app: FastAPI, control: Control) -> None:
    """Add the routes."""

    @app.get("/v1/namespaces/{id}/pins", responses=PROBLEMS, tags=["pins"], summary="Which")
    async def list_pins(
        request: Request, name: NamespaceId, cursor: Cursor = None, limit: Limit = DEFAULT_ROWS
    ) -> PinList:
        record = await found(control, control.grant(request), name)
        all_of_them = await control.run(pins.pinned(record.tag), record.tag)
        some, after = page(all_of_them, lambda pin: pin[0].hex(), cursor, limit)
        return PinList(pins=[Pin(digest=d.hex(), until_s=end) for d, end in some], next=after)

    @app.put(
        "/v1/namespaces/{id}/pins",
        responses={**PROBLEMS, 409: {"description": "Too many pages are pinned"}},
        tags=["pins"],
        summary="Pin pages",
    )
    async def pin(request: Request, name: NamespaceId, asked: PinsAsked) -> PinsAnswer:
        record = await found(control, control.grant(request), name)
        flow = pins.pin(record.tag, asked.named(record), asked.ttl_s)
        count = await control.run(flow, record.tag)
        if count is None:
            raise Refusal(409, "too_many", f"a namespace has at most {pins.MAX_PINS} pins")
        return PinsAnswer(pins=count)

    @app.delete(
        "/v1/namespaces/{id}/pins",
        responses=PROBLEMS,
        tags=["pins"],
        summary="End the pins of these pages; of all without a body",
    )
    async def unpin(
        request: Request, name: NamespaceId, asked: PinnedPages | None = None
    ) -> UnpinAnswer:
        record = await found(control, control.grant(request), name)
        named = asked.named(record) if asked else []
        if asked and not named:
            return UnpinAnswer(ended=0)
        return UnpinAnswer(ended=await control.run(pins.unpin(record.tag, named), record.tag))
