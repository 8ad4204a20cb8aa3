"""Before control routes: who asks is known before anything is read, and bodies are bounded."""

from __future__ import annotations

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvmanager.service.access import Access, Role
from kvmanager.service.codec import JSON, Headers, Refusal, encoded, read_body
from kvmanager.service.handlers import granted, respond

_ANY_ROLE = frozenset(Role)
_PREFIX = "/v1/"


class Guard:
    """Around an application whose routes do not see to that themselves."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"].startswith(_PREFIX):
            headers: Headers = dict(scope["headers"])
            try:
                granted(headers, self._access, _ANY_ROLE)
                receive = _again(await read_body(headers, receive), receive)
            except Refusal as refusal:
                await respond(send, refusal.status, encoded(refusal.document, JSON), JSON)
                return
        await self._app(scope, receive, send)


def _again(body: bytes, receive: Receive) -> Receive:
    """What gives a body that was read once more, and then goes on."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def next_message() -> Message:
        return first.pop() if first else await receive()

    return next_message
