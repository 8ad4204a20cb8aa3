"""A data route's request, from headers to answer."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from time import perf_counter

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response

from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from kvmanager.replies import EpochMoved, Forgotten
from kvmanager.service.access import Access, Forbidden, Grant, Role, Unknown
from kvmanager.service.backing import Backing
from kvmanager.service.codec import JSON, Refusal, content_type, decoded, encoded, read_body
from kvmanager.service.metrics import Metrics
from kvmanager.service.routes import DataRoute

if sys.version_info >= (3, 11):
    from asyncio import timeout
else:
    from async_timeout import timeout  # comes with redis-py there

TIMEOUT_MS = 1000.0
BODY_S = 5.0
"""So long may a request take to arrive."""
DEADLINE_HEADER = "deadline-ms"
_MAX_DIGITS = 7

Handler = Callable[[Request], Awaitable[Response]]

_log = logging.getLogger(__name__)


def data_handler(route: DataRoute, backing: Backing, access: Access, metrics: Metrics) -> Handler:
    """What answers requests of one route."""
    watch = metrics.watch(route.name)

    async def handle(request: Request) -> Response:
        began = perf_counter()
        content = JSON
        try:
            grant = granted(request, access, route.roles)
            content = content_type(request.headers)
            response = await _answered(route, backing, grant, request, content)
        except Refusal as refusal:
            response = encoded(refusal.document, content, refusal.status)
            if refusal.status == 401:
                response.headers["www-authenticate"] = "Bearer"
        watch(response.status_code, perf_counter() - began)
        return response

    return handle


def granted(request: Request, access: Access, roles: frozenset[Role]) -> Grant:
    """What the request's token allows. Raises Refusal."""
    headers = request.headers
    try:
        grant = access.grant(headers.get("authorization", ""), headers.get("host", ""))
        grant.check(roles)
    except Unknown:
        raise Refusal(401, "unknown_token", "show a token that this service knows") from None
    except Forbidden as error:
        raise Refusal(403, "forbidden", str(error)) from None
    return grant


async def _answered(
    route: DataRoute, backing: Backing, grant: Grant, request: Request, content: str
) -> Response:
    timeout_ms = _timeout_ms(request)
    try:
        async with timeout(BODY_S):
            body = await read_body(request)
    except (TimeoutError, asyncio.TimeoutError):
        raise Refusal(408, "slow", "the request did not arrive in time") from None
    asked = decoded(route.asks, body, content)
    try:
        namespace = asked.named()
    except ValidationError:
        raise Refusal(422, "invalid", "namespace: a field has no such value") from None
    except ValueError as error:
        raise Refusal(422, "invalid", f"namespace: {error}") from None
    try:
        grant.check_tenant(namespace.tenant)
    except Forbidden as error:
        raise Refusal(403, "forbidden", str(error)) from None
    try:
        answer = await backing.ask(route.plan(namespace, asked), timeout_ms)
    except EpochMoved as moved:
        raise Refusal(409, "stale_epoch", str(moved), moved.epoch) from None
    except Forgotten as forgotten:
        raise Refusal(409, "forgotten", str(forgotten)) from None
    except RegistryUnavailable as error:
        raise Refusal(503, "unavailable", str(error)) from None
    except RegistryRefused as error:
        _log.warning("Redis refuses: %s", error)
        raise Refusal(502, "refused", str(error)) from None
    return encoded(answer, content)


def _timeout_ms(request: Request) -> float:
    said = request.headers.get(DEADLINE_HEADER)
    if said is None:
        return TIMEOUT_MS
    if not said.isascii() or not said.isdigit() or len(said) > _MAX_DIGITS or not int(said):
        raise Refusal(400, "deadline", f"{DEADLINE_HEADER} is a number of milliseconds above 0")
    return float(said)
