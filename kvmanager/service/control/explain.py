"""POST /v1/explain: where pages are, or why they would be missed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field, model_validator

from hicache_backends.outcomes import Reason
from kvmanager.control.explain import MAX_PAGES, Copy, Explained, explain
from kvmanager.service.control.base import EVERYONE, PROBLEMS, Control
from kvmanager.service.control.documents import DigestText
from kvmanager.service.control.locate import NamespaceName, PagesAsked
from kvmanager.service.control.scope import found, missing

MAX_MEDIA = 1024

UuidText = Annotated[str, Field(pattern="^[0-9a-f]{32}$")]


class ExplainAsked(PagesAsked):
    """Pages of one namespace, and the media (uuids) that the process reaches for which they are
    explained; without them, for any that is alive. At most 256 pages."""

    namespace: NamespaceName
    media: Annotated[list[UuidText], Field(max_length=MAX_MEDIA)] | None = None

    @model_validator(mode="after")
    def _few(self) -> ExplainAsked:
        if len(self.pages) > MAX_PAGES:
            raise ValueError(f"at most {MAX_PAGES} pages are explained at once")
        return self


class CopyAnswer(BaseModel):
    """A copy. Store, host and server are empty where the registry has forgotten the store;
    `used_s`: seconds since an access was noted, once a minute at most."""

    medium: str
    shared: bool
    reached: bool
    store: str
    host: str
    server: str
    alive: bool
    location: str
    used_s: float
    children: int


class PageAnswer(BaseModel):
    """`reason`: why the page would be missed; none where it would be found."""

    digest: DigestText
    reason: Reason | None
    detail: str
    pinned_until_s: int
    copies: list[CopyAnswer]


class ExplainAnswer(BaseModel):
    """One answer a page, in order."""

    pages: list[PageAnswer]


def add(app: FastAPI, control: Control) -> None:
    """Add the route."""

    @app.post(
        "/v1/explain",
        tags=["routers"],
        summary="Where pages are, or why they would be missed",
        response_model=ExplainAnswer,
        responses=PROBLEMS,
    )
    async def why(request: Request, asked: ExplainAsked) -> JSONResponse:
        grant = control.grant(request, EVERYONE)
        record = await found(control, grant, asked.namespace)
        reach = None if asked.media is None else list(map(bytes.fromhex, asked.media))
        pages = await control.run(explain(record.tag, asked.pages, reach), record.tag)
        if pages is None:
            raise missing()
        return JSONResponse({"pages": [_document(page) for page in pages]})


def _document(page: Explained) -> dict[str, Any]:
    return {
        "digest": page.digest.hex(),
        "reason": page.reason.value if page.reason else None,
        "detail": page.detail,
        "pinned_until_s": page.pinned_until_s,
        "copies": [_copy(copy) for copy in page.copies],
    }


def _copy(copy: Copy) -> dict[str, Any]:
    return {
        "medium": copy.medium.hex(),
        "shared": copy.shared,
        "reached": copy.reached,
        "store": copy.store.hex(),
        "host": copy.host,
        "server": copy.server,
        "alive": copy.alive,
        "location": copy.location.hex(),
        "used_s": copy.used_s,
        "children": copy.children,
    }
