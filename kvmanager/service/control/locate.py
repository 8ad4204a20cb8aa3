"""POST /v1/locate: which servers hold how much of a prompt's prefix, for routers."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse
from pydantic import BaseModel, ConfigDict, Field, model_validator

from kvmanager import keys
from kvmanager.control import namespaces
from kvmanager.control.locate import MAX_PAGES, Locator, ServerPrefix, merged
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.service.access import Grant
from kvmanager.service.codec import Refusal
from kvmanager.service.control.base import EVERYONE, PROBLEMS, Control
from kvmanager.service.control.documents import DigestText
from kvmanager.service.control.scope import may_see, missing, visible
from kvmanager.service.fields import LongText

MAX_NAMESPACES = 64
"""Of one question."""
AT_ONCE = 4
"""Of these, so that others' requests wait a few milliseconds at most."""

NamespaceName = Annotated[str, Field(pattern="^[0-9a-f]{18}$")]
PageHash = Annotated[str, Field(min_length=1, max_length=256)]
"""Of any letters, which take 4 bytes at most: `identity.MAX_KEY_BYTES`."""


class PagesAsked(BaseModel):
    """Pages of one prompt, in order: the chained hashes by which the engine calls them, or their
    digests within one namespace."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    hashes: Annotated[list[PageHash], Field(max_length=MAX_PAGES)] | None = None
    digests: Annotated[list[DigestText], Field(max_length=MAX_PAGES)] | None = None

    @model_validator(mode="after")
    def _named_once(self) -> PagesAsked:
        if (self.hashes is None) == (self.digests is None):
            raise ValueError("give hashes or digests")
        return self

    @property
    def pages(self) -> list[str] | list[bytes]:
        """Hashes or digests."""
        if self.digests is not None:
            return [bytes.fromhex(digest) for digest in self.digests]
        return self.hashes or []


class LocateAsked(PagesAsked):
    """Give the ids of all namespaces that a request needs (of each range of heads or layers, and
    of each pool), or the model's name, for all of them that the token may see."""

    namespaces: Annotated[list[NamespaceName], Field(max_length=MAX_NAMESPACES)] | None = None
    model: LongText | None = None
    tenant: Annotated[LongText | None, Field(description="With a model: of this tenant")] = None
    pools: Annotated[
        list[LongText] | None, Field(description="With a model: these alone", max_length=64)
    ] = None

    @model_validator(mode="after")
    def _one_question(self) -> LocateAsked:
        if (self.namespaces is None) == (self.model is None):
            raise ValueError("give namespaces or a model")
        if self.digests is not None and (self.namespaces is None or len(self.namespaces) != 1):
            raise ValueError("digests are those of one namespace: name it, or give hashes")
        return self


class MediumAnswer(BaseModel):
    """What a medium holds of the prefix by itself: `id` is what events call it."""

    medium: str
    id: str
    shared: bool
    pages: int


class ServerAnswer(BaseModel):
    """A server, and how many of the first pages it would find: as many as the worst of its ranks
    and pools, each on all the media that it reaches."""

    server: str
    pages: int
    ranks: int
    hosts: list[str]
    media: list[MediumAnswer]
    namespaces: list[NamespaceName]


class LocateAnswer(BaseModel):
    """Servers that would find the first page at least, the longest prefix first."""

    servers: list[ServerAnswer]
    namespaces: Annotated[list[NamespaceName], Field(description="Those that were asked about")]


def add(app: FastAPI, control: Control) -> None:
    """Add the route."""
    locator = Locator()

    @app.post(
        "/v1/locate",
        tags=["routers"],
        summary="Which servers hold how much of a prefix",
        description="A hint: pages come and go, and a hole of less than an eighth of the pages may "
        "be overlooked. Who is alive is known to a second. Nothing is counted as used.",
        response_model=LocateAnswer,
        responses=PROBLEMS,
    )
    async def locate(request: Request, asked: LocateAsked) -> JSONResponse:
        grant = control.grant(request, EVERYONE)
        tags = await _tags(control, grant, locator, asked)
        pages = asked.pages
        found = []
        for start in range(0, len(tags), AT_ONCE):  # the service hashes all pages for each of them
            some = tags[start : start + AT_ONCE]
            flows = (control.run(locator.prefixes(tag, pages), tag) for tag in some)
            found += await asyncio.gather(*flows)
        servers = [_document(server) for server in merged([each for each in found if each])]
        ids = [namespaces.id_of(tag) for tag in tags]
        return JSONResponse({"servers": servers, "namespaces": ids})


async def _tags(
    control: Control, grant: Grant, locator: Locator, asked: LocateAsked
) -> list[bytes]:
    """Of the namespaces that are asked about. Raises Refusal: one is not there, or not for the
    token; too many match."""
    if asked.namespaces is None:
        matching = [each.tag for each in await visible(control, grant) if _matches(each, asked)]
        if len(matching) > MAX_NAMESPACES:
            raise Refusal(422, "invalid", f"{len(matching)} namespaces match: name them, or pools")
        return matching
    tags = [namespaces.tag_of(name) for name in dict.fromkeys(asked.namespaces)]
    layouts = await asyncio.gather(*(control.run(locator.layout(tag), tag) for tag in tags))
    for layout in layouts:
        if layout is None or not may_see(grant, layout.record):
            raise missing()
    return tags


def _matches(record: NamespaceRecord, asked: LocateAsked) -> bool:
    namespace = record.namespace
    return (
        namespace.model == asked.model
        and asked.tenant in (None, namespace.tenant)
        and (asked.pools is None or namespace.pool in asked.pools)
    )


def _document(found: ServerPrefix) -> dict[str, Any]:
    media = [
        {
            "medium": each.medium.hex(),
            "id": keys.medium_id(each.medium).decode(),
            "shared": each.shared,
            "pages": each.pages,
        }
        for each in found.media
    ]
    return {
        "server": found.server,
        "pages": found.pages,
        "ranks": found.ranks,
        "hosts": list(found.hosts),
        "media": media,
        "namespaces": list(found.namespaces),
    }
