"""What the control routes share: who asks, and how Redis is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from hicache_backends.errors import RegistryRefused, RegistryUnavailable
from kvmanager.flow import Flow, T
from kvmanager.service.access import Access, Forbidden, Grant, Role
from kvmanager.service.backing import Backing
from kvmanager.service.codec import Refusal
from kvmanager.service.control.census import Census
from kvmanager.service.control.roster import Roster
from kvmanager.service.documents import Problem
from kvmanager.service.handlers import granted
from kvmanager.service.tracing import concerns

TIMEOUT_MS = 5000.0
OPERATORS = frozenset({Role.ADMIN})
READERS = frozenset({Role.ROUTER, Role.ADMIN})
EVERYONE = frozenset(Role)
PROBLEMS: dict[int | str, dict[str, Any]] = {
    401: {"model": Problem, "description": "No token that is known"},
    403: {"model": Problem, "description": "The token is not for this"},
    404: {"model": Problem, "description": "There is no such thing"},
    422: {"model": Problem, "description": "A field has no such value"},
    502: {"model": Problem, "description": "Redis refuses"},
    503: {"model": Problem, "description": "Redis does not answer"},
}
"""What every control route may answer instead."""


@dataclass(frozen=True)
class Control:
    """Given to each module of routes."""

    backing: Backing
    access: Access
    roster: Roster = field(default_factory=Roster)
    census: Census = field(default_factory=Census)

    def grant(self, request: Request, roles: Iterable[Role] = OPERATORS) -> Grant:
        """What the request's token allows. Raises Refusal."""
        return granted(dict(request.scope["headers"]), self.access, frozenset(roles))

    def grant_for(self, request: Request, tenant: str, roles: Iterable[Role] = OPERATORS) -> Grant:
        """The same for one tenant's things. Raises Refusal."""
        grant = self.grant(request, roles)
        concerns(tenant)
        try:
            grant.check_tenant(tenant)
        except Forbidden as error:
            raise Refusal(403, "forbidden", str(error)) from None
        return grant

    async def run(self, flow: Flow[T], tag: bytes, timeout_ms: float = TIMEOUT_MS) -> T:
        """Carry a flow out on the shard of a hash tag. Raises Refusal."""
        try:
            return await self.backing.run(flow, tag, timeout_ms)
        except RegistryUnavailable as error:
            raise Refusal(503, "unavailable", str(error)) from None
        except RegistryRefused as error:
            raise Refusal(502, "refused", str(error)) from None


async def invalid(_request: Request, error: Exception) -> JSONResponse:
    """The answer to what is not what a route asks for. It holds nothing of what was sent, which may
    be no JSON."""
    if not isinstance(error, RequestValidationError):
        raise error
    first = error.errors()[0]
    place = ".".join(str(part) for part in first["loc"])
    return _problem(422, "invalid", f"{place}: {first['msg']}")


async def unserved(_request: Request, error: Exception) -> JSONResponse:
    """The answer where there is no such route, or the body could not be read."""
    if not isinstance(error, HTTPException):
        raise error
    return _problem(error.status_code, "not_served", str(error.detail), error.headers)


async def refused(_request: Request, refusal: Exception) -> JSONResponse:
    """The answer that a Refusal stands for. Raises whatever else it is given."""
    if not isinstance(refusal, Refusal):
        raise refusal
    headers = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
    return JSONResponse(refusal.document, refusal.status, headers)


def _problem(
    status: int, error: str, detail: str, headers: Mapping[str, str] | None = None
) -> JSONResponse:
    clean = detail.encode("utf-8", "replace").decode()
    return JSONResponse({"error": error, "detail": clean, "epoch": None}, status, headers)
