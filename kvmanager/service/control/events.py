"""GET /v1/events: what happens in a namespace, for routers that mirror what is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from typing import Annotated, Any

from fastapi import FastAPI, Header, Query, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from kvmanager.control.events import is_sequence
from kvmanager.flow import Flow, T
from kvmanager.service.access import Forbidden, Role
from kvmanager.service.codec import Refusal
from kvmanager.service.control.base import PROBLEMS, TIMEOUT_MS, Control
from kvmanager.service.control.scope import found
from kvmanager.service.documents import Problem
from kvmanager.service.feeds import Feed, Feeds
from kvmanager.service.listener import Listener
from kvmanager.service.protocol import ABORT
from kvmanager.service.walks import Slow

LISTENERS = frozenset({Role.ROUTER, Role.ADMIN})
SNAPSHOT = "snapshot"
SEND_S = 10.0
"""So long may a listener take for what it is sent, some 64 KiB at a time."""
_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_TEXT = {"content": {"text/event-stream": {"schema": {"type": "string"}}}}
_DESCRIPTION = """
Server-sent events; their data is JSON, digests and uuids in hexadecimal digits. `medium` is the id
of 8 letters that the namespace knows a medium by. A digest is BLAKE2b, 16 bytes, keyed with the
namespace's fingerprint, of a page hash's UTF-8 bytes.

* `snapshot` (fingerprint, epoch, media, stores): what the listener had is void. `pages` follow
  (medium, stores: digests by store) until `live` says that the snapshot is complete.
* `added` and `removed` (medium, store, digests), `cleared` (epoch), `joined` and `lost` (process,
  store, medium), `forgotten` (medium): what happens, in order; `lost` has `why`: left, where the
  process said so itself. A page that a snapshot holds may be added or removed once more before
  `live`: apply all in order, and the result is exact.
* `reset`: something may have been missed; a snapshot follows.

`live` and all that happens have an id, their sequence. Come back with it, as `from` or in the
header Last-Event-ID, to hear what happened since; where that is no longer known, a `reset` says so.
A comment is sent every 15 s in which nothing else is. Who does not read is disconnected.
"""


def add(app: FastAPI, control: Control) -> None:
    """Add the route."""

    async def run(flow: Flow[T], tag: bytes) -> T:
        return await control.backing.run(flow, tag, TIMEOUT_MS)

    feeds = app.state.feeds = Feeds(run)

    @app.get(
        "/v1/events",
        tags=["routers"],
        summary="What happens in a namespace, as it happens",
        description=_DESCRIPTION,
        response_class=Response,
        responses={
            **PROBLEMS,
            200: {**_TEXT, "description": "Events, until either side ends the connection"},
            429: {"model": Problem, "description": "This service has all the listeners it takes"},
        },
    )
    async def events(
        request: Request,
        namespace: Annotated[
            str, Query(pattern="^[0-9a-f]{18}$", description="Id of the namespace")
        ],
        start: Annotated[
            str,
            Query(alias="from", max_length=41, description="A sequence, or snapshot"),
        ] = SNAPSHOT,
        last_event_id: Annotated[str | None, Header(max_length=41)] = None,
    ) -> Response:
        grant = control.grant(request, LISTENERS)
        after = last_event_id or start
        if after != SNAPSHOT and not is_sequence(after):
            raise Refusal(422, "invalid", "from: a sequence, such as 1700000000000-0, or snapshot")
        record = await found(control, grant, namespace)
        listens = feeds.feed(record.tag, grant.tenants)

        def allowed() -> bool:
            try:
                control.grant(request, LISTENERS).check_tenant(record.tenant)
            except (Refusal, Forbidden):
                return False
            return True

        return EventStream(listens, None if after == SNAPSHOT else after, allowed)


class EventStream(Response):
    """Sends what a listener hears until it goes, the service ends, it does not read, or its token
    is taken back."""

    def __init__(
        self,
        listens: AbstractContextManager[Feed],
        after: str | None,
        allowed: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._allowed = allowed
        self._listens = listens
        self._after = after

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._listens as feed:
            listener = Listener(feed, self._after)
            feed.ears.add(listener)
            try:
                await _until_one_ends(self._tell(listener, scope, send), _gone(receive))
            finally:
                feed.ears.discard(listener)
                listener.close()

    async def _tell(self, listener: Listener, scope: Scope, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        try:
            while (part := await listener.next()) and self._allowed():
                await asyncio.wait_for(_sent(send, part, more=True), SEND_S)
            await asyncio.wait_for(_sent(send, b"", more=False), SEND_S)
        except (Slow, asyncio.TimeoutError):
            abort: Callable[[], Any] | None = scope.get(ABORT)
            if abort is not None:
                abort()
                await asyncio.sleep(SEND_S)  # ended by the loss of the connection


async def _sent(send: Send, part: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": part, "more_body": more})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _until_one_ends(*steps: Awaitable[None]) -> None:
    tasks = [asyncio.ensure_future(step) for step in steps]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
    for result in ended:
        if isinstance(result, Exception):
            raise result
