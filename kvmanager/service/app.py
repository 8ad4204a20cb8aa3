"""The service as an ASGI application: data routes, health, metrics, and the document of all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Response
from fastapi.exceptions import RequestValidationError
from fastapi.openapi.utils import get_openapi
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from hicache_backends.errors import RegistryError, RegistryRefused
from kvmanager.service.access import Access
from kvmanager.service.backing import Backing
from kvmanager.service.codec import JSON, Refusal, encoded
from kvmanager.service.control.base import Control, invalid, refused, unserved
from kvmanager.service.control.routes import add_control
from kvmanager.service.guard import Guard
from kvmanager.service.handlers import DataHandler
from kvmanager.service.loops.loop import USUAL, LoopOptions, Worker
from kvmanager.service.loops.tasks import make_loops
from kvmanager.service.metrics import Metrics
from kvmanager.service.openapi import describe
from kvmanager.service.routes import DATA_ROUTES
from kvmanager.service.scrape import add_metrics

TITLE = "KVManager"
VERSION = "1"


class Service:
    """The application: data routes go straight to their handlers, all else through `control`,
    whose layers would cost a lookup a fifth of its time."""

    def __init__(self, control: FastAPI, handlers: dict[str, DataHandler], access: Access) -> None:
        self.control = control
        self._guarded = Guard(control, access)
        self._handlers = handlers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            handler = self._handlers.get(scope["path"])
            if handler is not None:
                await handler(scope, receive, send)
                return
        await self._guarded(scope, receive, send)

    def end(self) -> None:
        """The service ends: so must requests that have no end of their own."""
        self.control.state.feeds.close()


def make_app(backing: Backing, access: Access, loops: LoopOptions | None = USUAL) -> Service:
    """A service over one Redis. It keeps no state that another one would lack. `loops`: None for
    one that only answers."""
    metrics = Metrics(lambda: backing.impaired)
    app = FastAPI(title=TITLE, version=VERSION, docs_url=None, redoc_url=None, lifespan=_life)
    control = Control(backing, access)
    app.state.backing = backing
    app.state.loops = make_loops(Worker(control, loops)) if loops else []
    _add_health(app, backing)
    add_metrics(app, control, metrics, app.state.loops)
    add_control(app, control)
    app.add_exception_handler(Refusal, refused)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(HTTPException, unserved)
    _add_document(app)
    _add_refusals(app)
    return Service(
        app,
        {route.path: DataHandler(route, backing, access, metrics) for route in DATA_ROUTES},
        access,
    )


@asynccontextmanager
async def _life(app: FastAPI) -> AsyncIterator[None]:
    backing: Backing = app.state.backing
    await backing.open()
    tasks = [asyncio.create_task(backing.watch())]
    tasks += [asyncio.create_task(loop.run()) for loop in app.state.loops]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await backing.close()


def _add_health(app: FastAPI, backing: Backing) -> None:
    @app.get("/healthz", tags=["health"], summary="Whether the process runs")
    async def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get(
        "/readyz",
        tags=["health"],
        summary="Whether requests can be answered",
        responses={503: {"description": "Redis does not answer, or refuses"}},
    )
    async def readyz(response: Response) -> dict[str, str]:
        try:
            await backing.ping()
        except RegistryRefused:
            response.status_code = 503
            return {"status": "Redis refuses; the log of this service says why"}
        except RegistryError:
            response.status_code = 503
            return {"status": "Redis does not answer"}
        return {"status": "ok"}


def _add_refusals(app: FastAPI) -> None:
    async def only_post() -> Response:
        problem = {"error": "method", "detail": "this route takes POST", "epoch": None}
        return Response(encoded(problem, JSON), 405, {"allow": "POST"}, media_type=JSON)

    methods = ["GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS"]
    for route in DATA_ROUTES:
        app.add_api_route(route.path, only_post, methods=methods, include_in_schema=False)


def _add_document(app: FastAPI) -> None:
    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            own = get_openapi(title=TITLE, version=VERSION, routes=app.routes)
            app.openapi_schema = describe(own)
        return app.openapi_schema

    app.openapi = openapi  # type: ignore[method-assign]  # FastAPI's documented way
