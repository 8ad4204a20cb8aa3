"""GET /v1/overview: what operators ask first, of one tenant or of all that the token is for."""

from __future__ import annotations

import asyncio
import time
from typing import Annotated

from fastapi import FastAPI, Query, Request, Response
from pydantic import TypeAdapter

from kvmanager.control.overview import Asked, compose
from kvmanager.control.overview_model import Overview
from kvmanager.service.access import EVERY_TENANT, Grant
from kvmanager.service.codec import JSON, Refusal
from kvmanager.service.control import census
from kvmanager.service.control.base import PROBLEMS, Control

FRESH_S = 1.0
"""An answer is given again for so long, to those who may see the same."""
MAX_AGE_S = 3.0
"""What the background has read is taken if it is not older."""
MIN_WINDOW_S, MAX_WINDOW_S = 60, 14 * 24 * 3600
_MOST_KEPT = 32
_written = TypeAdapter(Overview)

Tenant = Annotated[
    str | None, Query(max_length=255, description="One tenant; without it all of the token's.")
]
Window = Annotated[
    int,
    Query(ge=MIN_WINDOW_S, le=MAX_WINDOW_S, description="How far back counts go, in seconds."),
]
_Key = tuple[frozenset[str], str | None, int]


def add(app: FastAPI, control: Control) -> None:
    """Add the route."""
    answers = _Answers(control)

    @app.get(
        "/v1/overview",
        tags=["control"],
        summary="What operators ask first",
        response_model=Overview,
        responses=PROBLEMS,
    )
    async def overview(
        request: Request, tenant: Tenant = None, window_s: Window = 3600
    ) -> Response:
        grant = control.grant(request) if tenant is None else control.grant_for(request, tenant)
        return Response(await answers.about(grant, tenant, window_s), media_type=JSON)


class _Answers:
    """Made once for all that ask the same within a second."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._kept: dict[_Key, tuple[float, bytes]] = {}
        self._making = asyncio.Lock()

    async def about(self, grant: Grant, tenant: str | None, window_s: int) -> bytes:
        """Raises Refusal."""
        if self._control.backing.down:
            raise Refusal(503, "unavailable", "Redis does not answer")
        key = (grant.tenants, tenant, window_s)
        async with self._making:
            until_s, answer = self._kept.get(key, (0.0, b""))
            if time.monotonic() >= until_s:
                answer = await self._made(grant, tenant, window_s)
                self._kept.pop(key, None)
                while len(self._kept) >= _MOST_KEPT:
                    del self._kept[next(iter(self._kept))]
                self._kept[key] = (time.monotonic() + FRESH_S, answer)
            return answer

    async def _made(self, grant: Grant, tenant: str | None, window_s: int) -> bytes:
        run = self._control.run
        seen = await self._control.census.read(run, MAX_AGE_S)
        allowed = sorted(name for name in seen.looks if may_see(grant, name))
        chosen = allowed if tenant is None else [tenant]
        views = await census.views(run, seen, chosen, window_s)
        left_out = seen.left_out if EVERY_TENANT in grant.tenants else 0
        left_out += sum(len(seen.looks.get(name, ())) for name in chosen)
        left_out -= sum(len(view.looks) for view in views)
        asked = Asked(tenant, allowed, window_s, seen.at_s, left_out)
        return await asyncio.to_thread(lambda: _written.dump_json(compose(views, asked)))


def may_see(grant: Grant, tenant: str) -> bool:
    """Whether a token is for a tenant's things."""
    return EVERY_TENANT in grant.tenants or tenant in grant.tenants
