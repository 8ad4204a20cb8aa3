"""Traces: a span a request, sent by OpenTelemetry's own exporter. Off unless asked for.

A wrapper around the whole application, since the data routes are not FastAPI's. Attributes are the
route, the method, the status, and a hash of the tenant; never a token, a name or a page.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from contextvars import ContextVar
from functools import lru_cache
from typing import TYPE_CHECKING

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hicache_backends.errors import MissingExtra
from hicache_backends.version import installed_version
from kvmanager.service.logs import TRACE
from kvmanager.service.routes import DATA_ROUTES

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.trace import Span

SERVICE = "kvmanager"
TENANT = "kvmanager.tenant"
_UNKNOWN = "unknown"
_DATA_PATHS = frozenset(route.path for route in DATA_ROUTES)
_DESTINATIONS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")

_concerned: ContextVar[str | None] = ContextVar("tenant", default=None)


def concerns(tenant: str) -> None:
    """Say whose things the present request is about."""
    _concerned.set(tenant)


def wanted(environment: Mapping[str, str]) -> bool:
    """Whether OpenTelemetry's own variables name a place that spans go to."""
    off = environment.get("OTEL_SDK_DISABLED", "").lower() == "true"
    none = environment.get("OTEL_TRACES_EXPORTER", "otlp") != "otlp"
    return not off and not none and any(environment.get(name) for name in _DESTINATIONS)


def provider() -> TracerProvider:
    """Sends spans in batches to where OTEL_EXPORTER_OTLP_ENDPOINT says, by a thread of its own.

    Raises MissingExtra.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        raise MissingExtra("kvmanager serve --traces", "otel") from None
    about = {"service.name": SERVICE, "service.version": installed_version()}
    made = TracerProvider(resource=Resource(about).merge(Resource.create()))
    made.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return made


class Traced:
    """An ASGI application with a span around each request; part of the caller's trace, if the
    request has a `traceparent`."""

    def __init__(self, app: ASGIApp, spans: TracerProvider) -> None:
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._app = app
        self._spans = spans
        self._tracer = spans.get_tracer(SERVICE)
        self._propagator = TraceContextTextMapPropagator()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            try:
                await self._app(scope, receive, send)
            finally:
                self._spans.shutdown()  # sends what is left
        elif scope["type"] == "http":
            await self._request(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    async def _request(self, scope: Scope, receive: Receive, send: Send) -> None:
        from opentelemetry.trace import SpanKind

        carrier = {k.decode("latin-1"): v.decode("latin-1") for k, v in scope["headers"]}
        parent = self._propagator.extract(carrier)
        _concerned.set(None)
        with self._tracer.start_as_current_span(
            scope["method"], parent, SpanKind.SERVER, {"http.request.method": scope["method"]}
        ) as span:
            TRACE.set(f"{span.get_span_context().trace_id:032x}")

            async def told(message: Message) -> None:
                if message["type"] == "http.response.start":
                    _set_status(span, message["status"])
                await send(message)

            try:
                await self._app(scope, receive, told)
            finally:
                route = _route(scope)
                span.update_name(f"{scope['method']} {route}")
                span.set_attribute("http.route", route)
                tenant = _concerned.get()
                if tenant is not None:
                    span.set_attribute(TENANT, tenant_hash(tenant))


@lru_cache(1024)
def tenant_hash(tenant: str) -> str:
    """Stands for a tenant in a trace: the first 12 hexadecimal digits of SHA-256."""
    return hashlib.sha256(tenant.encode()).hexdigest()[:12]


def _set_status(span: Span, status: int) -> None:
    from opentelemetry.trace import StatusCode

    span.set_attribute("http.response.status_code", status)
    if status >= 500:
        span.set_status(StatusCode.ERROR)


def _route(scope: Scope) -> str:
    """The route's pattern, so that there are few; what is none has one name."""
    route = scope.get("route")  # of FastAPI
    path: str = scope["path"] if route is None else route.path
    return path if route is not None or path in _DATA_PATHS else _UNKNOWN
