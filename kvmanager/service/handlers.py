"""A data route's request, from headers to answer."""

from __future__ import annotations

import logging
from time import perf_counter

from pydantic import ValidationError
from starlette.types import Receive, Scope, Send

from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from hicache_backends.identity import Namespace
from kvmanager.replies import EpochMoved, Forgotten
from kvmanager.service.access import Access, Forbidden, Grant, Role, Unknown
from kvmanager.service.backing import Backing
from kvmanager.service.codec import (
    JSON,
    Headers,
    Refusal,
    content_type,
    decoded,
    encoded,
    header,
    read_body,
)
from kvmanager.service.documents import Asked
from kvmanager.service.metrics import Metrics
from kvmanager.service.routes import Answer, DataRoute, tag_of
from kvmanager.service.tracing import concerns

TIMEOUT_MS = 1000.0
DEADLINE_HEADER = "deadline-ms"
_MAX_DIGITS = 7

_log = logging.getLogger(__name__)


class DataHandler:
    """Answers the requests of one route: an ASGI application of its own, since Starlette's layers
    would cost a lookup as much as its parsing does."""

    def __init__(
        self, route: DataRoute, backing: Backing, access: Access, metrics: Metrics
    ) -> None:
        self._route = route
        self._backing = backing
        self._access = access
        self._told = metrics.watch(route.name)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        began = perf_counter()
        headers: Headers = dict(scope["headers"])
        content, status = JSON, 200
        try:
            grant = granted(headers, self._access, self._route.roles)
            content = content_type(headers)
            document = await self._answer(grant, headers, receive, content)
        except Refusal as refusal:
            status, document = refusal.status, refusal.document
        await respond(send, status, encoded(document, content), content)
        self._told(status, perf_counter() - began)

    async def _answer(
        self, grant: Grant, headers: Headers, receive: Receive, content: str
    ) -> Answer:
        timeout_ms = _timeout_ms(headers)
        asked = decoded(self._route.asks, await read_body(headers, receive), content)
        namespace = _namespace(asked, grant)
        try:
            plan = self._route.plan(namespace, asked)
            return await self._backing.ask(plan, tag_of(namespace), timeout_ms)
        except EpochMoved as moved:
            raise Refusal(409, "stale_epoch", str(moved), moved.epoch) from None
        except Forgotten as forgotten:
            raise Refusal(409, "forgotten", str(forgotten)) from None
        except RegistryUnavailable as error:
            raise Refusal(503, "unavailable", str(error)) from None
        except RegistryRefused as error:
            if self._backing.complain(str(error)):
                _log.warning("Redis refuses: %s", error)
            raise Refusal(502, "refused", str(error)) from None


def granted(headers: Headers, access: Access, roles: frozenset[Role]) -> Grant:
    """What the request's token allows. Raises Refusal."""
    try:
        grant = access.grant(header(headers, b"authorization"), header(headers, b"host"))
        grant.check(roles)
    except Unknown:
        raise Refusal(401, "unknown_token", "show a token that this service knows") from None
    except Forbidden as error:
        raise Refusal(403, "forbidden", str(error)) from None
    return grant


async def respond(send: Send, status: int, body: bytes, content: str) -> None:
    """Send a whole answer."""
    headers = [
        (b"content-type", content.encode()),
        (b"content-length", b"%d" % len(body)),
    ]
    if status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _namespace(asked: Asked, grant: Grant) -> Namespace:
    try:
        namespace = asked.named()
    except ValidationError:
        raise Refusal(422, "invalid", "namespace: a field has no such value") from None
    except ValueError as error:
        raise Refusal(422, "invalid", f"namespace: {error}") from None
    concerns(namespace.tenant)
    try:
        grant.check_tenant(namespace.tenant)
    except Forbidden as error:
        raise Refusal(403, "forbidden", str(error)) from None
    return namespace


def _timeout_ms(headers: Headers) -> float:
    said = headers.get(DEADLINE_HEADER.encode())
    if said is None:
        return TIMEOUT_MS
    if not said.isdigit() or len(said) > _MAX_DIGITS or not int(said):
        raise Refusal(400, "deadline", f"{DEADLINE_HEADER} is a number of milliseconds above 0")
    return float(said)
