"""Traces: a span a request, which names nobody."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from kvmanager import keys
from kvmanager.control.namespaces import id_of
from kvmanager.service.access import Access, Grant, Role
from kvmanager.service.app import make_app
from kvmanager.service.backing import Backing
from kvmanager.service.logs import JsonFormatter
from kvmanager.service.tracing import Traced, tenant_hash, wanted
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import REPOSITORY, Service
from tests.kvmanager.members import NAMESPACE, Cluster
from tests.kvmanager.servers import Server, free_port
from tests.kvmanager.service_documents import namespace

__all__ = ["server_binary"]

ID = id_of(keys.tag(NAMESPACE.fingerprint))
TENANT = namespace().get("tenant", "default")
ABOUT = json.dumps({"namespace": namespace(), "epoch": 0, "digests": ["22" * 16], "media": []})
JSON = (b"content-type", b"application/json")
LOCAL = (b"host", b"localhost")


class Told:
    """An application that tells a memory of its requests."""

    def __init__(self, app: ASGIApp) -> None:
        self._memory = InMemorySpanExporter()
        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(self._memory))
        self._app = Traced(app, provider)

    @property
    def spans(self) -> Sequence[ReadableSpan]:
        return self._memory.get_finished_spans()

    async def ask(
        self, method: str, path: str, body: str = "", *headers: tuple[bytes, bytes]
    ) -> int:
        statuses: list[int] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": body.encode()}

        async def send(message: Message) -> None:
            statuses.extend([message["status"]] if "status" in message else [])

        scope: Scope = {
            "type": "http",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "query_string": b"",
            "root_path": "",
            "headers": [LOCAL, JSON, *headers],
        }
        await self._app(scope, receive, send)
        return statuses[0]


@pytest.fixture
def told(server: Server) -> Told:
    return Told(make_app(Backing(server.url), Access()))


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


async def test_a_data_call_is_one_span_with_its_route_status_and_the_tenants_hash(
    told: Told,
) -> None:
    status = await told.ask("POST", "/v1/lookup", ABOUT)
    (span,) = told.spans
    assert (span.name, span.kind) == ("POST /v1/lookup", SpanKind.SERVER)
    assert attributes(span) == {
        "http.request.method": "POST",
        "http.route": "/v1/lookup",
        "http.response.status_code": status,
        "kvmanager.tenant": tenant_hash(TENANT),
    }
    assert TENANT not in span.to_json()


async def test_other_routes_are_told_by_their_pattern_and_what_is_none_by_one_name(
    told: Told,
) -> None:
    assert await told.ask("GET", "/healthz") == 200
    assert await told.ask("GET", "/v1/claim") == 405
    assert await told.ask("GET", "/no/such/route") == 404
    names = [span.name for span in told.spans]
    assert names == ["GET /healthz", "GET /v1/claim", "GET unknown"]
    assert not any("kvmanager.tenant" in attributes(span) for span in told.spans)


async def test_a_route_about_a_namespace_tells_its_pattern_and_whose_it_is(
    told: Told, server: Server
) -> None:
    with Cluster(server.url) as cluster:
        cluster.store()
        assert await told.ask("GET", f"/v1/namespaces/{ID}") == 200
        assert await told.ask("GET", f"/v1/tenants/{NAMESPACE.tenant}") == 200
    one, other = map(attributes, told.spans)
    assert one["http.route"] == "/v1/namespaces/{id}"
    assert other["http.route"].startswith("/v1/tenants/{name")
    assert one["kvmanager.tenant"] == other["kvmanager.tenant"] == tenant_hash(NAMESPACE.tenant)
    assert ID not in told.spans[0].to_json()


async def test_a_span_belongs_to_the_trace_of_its_caller(told: Told) -> None:
    trace, parent = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
    await told.ask("GET", "/healthz", "", (b"traceparent", f"00-{trace}-{parent}-01".encode()))
    (span,) = told.spans
    assert span.context is not None
    assert span.parent is not None
    assert f"{span.context.trace_id:032x}" == trace
    assert f"{span.parent.span_id:016x}" == parent


async def test_what_is_logged_about_a_request_names_its_trace() -> None:
    lines: list[dict[str, Any]] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(json.loads(JsonFormatter().format(record)))

    log = logging.getLogger("tests.traced")
    log.addHandler(Kept())

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        log.warning("within")
        await asyncio.create_task(asyncio.to_thread(log.warning, "on behalf of it"))
        await send({"type": "http.response.start", "status": 204, "headers": []})

    told = Told(app)
    for _ in range(2):
        await asyncio.create_task(told.ask("GET", "/healthz"))  # as a server does
    log.warning("elsewhere")
    ids = [f"{span.context.trace_id:032x}" for span in told.spans if span.context]
    assert [line.get("trace_id") for line in lines] == [ids[0], ids[0], ids[1], ids[1], None]


async def test_a_redis_that_is_down_is_an_error_of_the_span() -> None:
    told = Told(make_app(Backing(f"redis://127.0.0.1:{free_port()}"), Access()))
    assert await told.ask("POST", "/v1/lookup", ABOUT) == 503
    (span,) = told.spans
    assert span.status.status_code is StatusCode.ERROR


async def test_a_refused_token_is_in_no_span(server: Server) -> None:
    access = Access([Grant(Role.NODE, frozenset({"a"}), bytes(32))])
    told = Told(make_app(Backing(server.url), access))
    secret = (b"authorization", b"Bearer hunter2hunter2hunter2")
    assert await told.ask("POST", "/v1/lookup", ABOUT, secret) == 401
    (span,) = told.spans
    assert attributes(span)["http.response.status_code"] == 401
    assert "hunter2" not in span.to_json()


def test_opentelemetrys_own_variables_turn_them_on_and_off() -> None:
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert wanted(there)
    assert wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"})
    assert not wanted({})
    assert not wanted({**there, "OTEL_SDK_DISABLED": "true"})
    assert not wanted({**there, "OTEL_TRACES_EXPORTER": "none"})


def test_spans_arrive_at_a_collector_before_the_service_ends(server: Server) -> None:
    with collector() as (url, received):
        environment = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_SERVICE_NAME": "registry"}
        service = Service(server.url, environment=environment).start()
        assert service.get("/readyz")[0] == 200
        assert service.terminate() == 0
    sent = [resource for request in received for resource in request.resource_spans]
    about = {a.key: a.value.string_value for a in sent[0].resource.attributes}
    assert about["service.name"] == "registry"
    names = {span.name for r in sent for scope in r.scope_spans for span in scope.spans}
    assert "GET /readyz" in names


def test_without_the_extra_it_is_named_and_nobody_else_needs_it() -> None:
    program = (
        "import sys\nsys.modules['opentelemetry.sdk'] = None\n"
        "sys.argv = ['kvmanager', 'serve', *sys.argv[1:]]\n"
        "from kvmanager.cli import main\nsys.exit(main())"
    )
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}"}
    for options, said in (
        (("--traces",), "pip install 'hicache-storage[otel]'"),
        (("--listen", "nowhere"), "HOST:PORT"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program, *options],
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 2
        assert said in done.stderr
        assert "Traceback" not in done.stderr


def test_a_service_without_traces_loads_nothing_of_them() -> None:
    program = (  # redis-py loads the SDK's metrics by itself, where they are installed
        "import sys, kvmanager.service.serving\n"
        "loaded = {'opentelemetry.sdk.trace', 'opentelemetry.exporter'} & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=60)


@contextmanager
def collector() -> Iterator[tuple[str, list[ExportTraceServiceRequest]]]:
    """The receiving end of OTLP over HTTP."""
    received: list[ExportTraceServiceRequest] = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if self.path == "/v1/traces":
                received.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - its base's name
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Receiver) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}", received
        finally:
            server.shutdown()
            thread.join()
