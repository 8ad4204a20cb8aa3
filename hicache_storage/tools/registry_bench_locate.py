"""How long a router waits for where a prompt's prefix is stored, with Redis and over HTTP."""

from __future__ import annotations

import http.client
import json
import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from urllib.parse import urlsplit

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageError
from hicache_backends.identity import page_digests
from hicache_backends.storage import ROOT
from hicache_storage.tools.registry_bench_plan import Progress
from hicache_storage.tools.registry_bench_service import served
from hicache_storage.tools.registry_bench_store import (
    TIMEOUT_MS,
    bench_namespace,
    entries,
    loopback_valkey,
)
from kvmanager import keys
from kvmanager.connect import connect_registry
from kvmanager.connection import Pool
from kvmanager.control.locate import Locator
from kvmanager.control.namespaces import id_of
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.model import Member
from kvmanager.options import RegistryOptions

PAGES = 247
SERVERS = 50
CALLS = 1000
WARM_UP_CALLS = 20
PAUSE_S = 0.005
"""Between two calls: a router asks once a request, and what it asked last is a little old."""
OPTIONS = RegistryOptions(timeout_ms=TIMEOUT_MS, heartbeat_ms=100_000, ttl_ms=600_000)

Prefixes = dict[str, int]
"""By server, of those that have any."""


def locate_figures(progress: Progress = lambda _phase, _share: None) -> dict[str, Any]:
    """Latencies of a prefix of `PAGES` pages over `SERVERS` servers with a medium each. Raises
    StorageError for an answer that is wrong, MissingExtra without the service's libraries."""
    hashes = [f"{n:064x}" for n in range(PAGES)]
    figures: dict[str, Any] = {"pages": PAGES, "servers": SERVERS}
    with loopback_valkey() as endpoint, _servers(endpoint, hashes) as expected:
        progress("locating", 0.0)
        figures["redis"] = _latencies(_by_redis(endpoint, hashes), expected)
        progress("locating", 0.5)
        with served(endpoint) as url, _by_http(url, hashes) as call:
            figures["http"] = _latencies(call, expected)
        progress("locating", 1.0)
    return figures


@contextmanager
def _servers(endpoint: str, hashes: list[str]) -> Iterator[Prefixes]:
    """Processes that have joined, each with a prefix of another length on its own disk."""
    dice = random.Random(0)  # noqa: S311  # the same lengths every time
    digests = page_digests(bench_namespace().fingerprint, hashes)
    lengths: Prefixes = {}
    with ExitStack() as stack:
        for n in range(SERVERS):
            name, store = f"server-{n}", uuid.uuid4().bytes
            lengths[name] = len(hashes) if n == 0 else dice.randint(0, len(hashes))
            member = Member(
                uuid.uuid4().bytes, f"host-{n}", name, store, uuid.uuid4().bytes, shared=False
            )
            registry = connect_registry(endpoint, bench_namespace(), member, options=OPTIONS)
            stack.callback(registry.close)
            pages = entries(digests, [ROOT, *digests[:-1]], store)[: lengths[name]]
            registry.publish(pages, b"", Deadline.after_ms(TIMEOUT_MS))
        yield {name: length for name, length in lengths.items() if length}


def _by_redis(endpoint: str, hashes: list[str]) -> Callable[[], Prefixes]:
    driver = Driver(Pool(Endpoint.parse(endpoint), TIMEOUT_MS), OPTIONS)
    locator, tag = Locator(), keys.tag(bench_namespace().fingerprint)

    def call() -> Prefixes:
        servers = locator.locate(driver, [tag], hashes, Deadline.after_ms(TIMEOUT_MS))
        return {server.server: server.pages for server in servers}

    return call


@contextmanager
def _by_http(url: str, hashes: list[str]) -> Iterator[Callable[[], Prefixes]]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=TIMEOUT_MS / 1000)
    namespace = id_of(keys.tag(bench_namespace().fingerprint))
    body = json.dumps({"namespaces": [namespace], "hashes": hashes})
    headers = {"content-type": "application/json"}

    def call() -> Prefixes:
        connection.request("POST", "/v1/locate", body, headers)
        answer = connection.getresponse()
        said = json.loads(answer.read())
        if answer.status != 200:
            raise StorageError(f"the service answers {answer.status}: {said}")
        return {server["server"]: server["pages"] for server in said["servers"]}

    try:
        yield call
    finally:
        connection.close()


def _latencies(call: Callable[[], Prefixes], expected: Prefixes) -> dict[str, float]:
    took_ms = []
    for n in range(WARM_UP_CALLS + CALLS):
        time.sleep(PAUSE_S)
        began = time.perf_counter()
        found = call()
        if n >= WARM_UP_CALLS:
            took_ms.append((time.perf_counter() - began) * 1000)
        if found != expected:
            raise StorageError("a prefix was located where it is not, or not where it is")
    took_ms.sort()
    return {
        "p50_ms": round(took_ms[len(took_ms) // 2], 3),
        "p99_ms": round(took_ms[len(took_ms) * 99 // 100], 3),
    }
