"""Several managers over one Valkey: what a client notices when one of them goes."""

from __future__ import annotations

import asyncio
import http.server
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from hicache_backends.errors import RegistryUnavailable
from kvmanager.aio import AsyncRegistry
from kvmanager.http import message as http_message
from kvmanager.http.connection import HttpConnection, HttpPool
from kvmanager.http.endpoint import HttpEndpoint
from kvmanager.model import Published, State
from kvmanager.options import RegistryOptions
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import Cluster, digests, eventually, soon
from tests.kvmanager.servers import Server, free_port

__all__ = ["server_binary"]

CALM = RegistryOptions(timeout_ms=2000, heartbeat_ms=500, ttl_ms=5000)


@pytest.fixture
def services(server: Server) -> Iterator[list[Service]]:
    started = [Service(server.url).start(wait=False) for _ in range(2)]
    for service in started:
        service.await_ready()
    yield started
    for service in started:
        service.stop()


def both(services: list[Service]) -> str:
    return ",".join(service.url for service in services)


def test_no_lookup_fails_when_a_manager_is_killed_under_load(services: list[Service]) -> None:
    failures: list[Exception] = []
    found = [0] * 4
    killed = threading.Event()
    with Cluster(both(services)) as cluster:
        store = cluster.store(options=CALM)
        keys = digests(24)
        store.write(store.chain(keys))

        def look_up(n: int) -> None:
            after = 0
            while after < 50:
                try:
                    assert store.lookup(keys).prefix == 24
                except Exception as error:
                    failures.append(error)
                    return
                found[n] += 1
                after += killed.is_set()

        threads = [threading.Thread(target=look_up, args=(n,)) for n in range(4)]
        for thread in threads:
            thread.start()
        eventually(lambda: min(found) > 20)
        endpoint = HttpEndpoint.parse(both(services))
        services[endpoint.addresses.index(endpoint.first)].kill()  # the one that is used
        killed.set()
        for thread in threads:
            thread.join()
        assert failures == []
        assert store.write(store.chain(digests(3))) == [Published.OK] * 3
        store.settled()


async def test_no_asyncio_lookup_fails_when_a_manager_is_killed(services: list[Service]) -> None:
    with Cluster(both(services)) as cluster:
        store = cluster.store(options=CALM)
        keys = digests(24)
        store.write(store.chain(keys))
        registry = AsyncRegistry(store.registry)
        calls = 0

        async def look_up() -> None:
            nonlocal calls
            for _ in range(100):
                found = await registry.lookup(keys, [store.member.medium], soon())
                assert found.prefix == 24
                calls += 1

        async def kill() -> None:
            while calls < 40:
                await asyncio.sleep(0)
            endpoint = HttpEndpoint.parse(both(services))
            services[endpoint.addresses.index(endpoint.first)].kill()

        await asyncio.gather(*(look_up() for _ in range(4)), kill())
        await registry.close()


def test_a_frozen_manager_costs_its_share_of_one_deadline(services: list[Service]) -> None:
    with Cluster(both(services)) as cluster:
        store = cluster.store(options=CALM, start=False)
        keys = digests(3)
        store.write(store.chain(keys))
        endpoint = HttpEndpoint.parse(both(services))
        frozen = services[endpoint.addresses.index(endpoint.first)]
        frozen.signal(signal.SIGSTOP)
        began = time.monotonic()
        assert store.registry.lookup(keys, [store.member.medium], soon(2000)).prefix == 3
        assert 0.95 < time.monotonic() - began < 1.9
        began = time.monotonic()
        assert store.lookup(keys).prefix == 3
        assert time.monotonic() - began < 0.9, "the other one is asked first now"
        frozen.signal(signal.SIGCONT)


def test_a_manager_that_lost_its_redis_sends_clients_to_another(server: Server) -> None:
    astray = Service(f"redis://127.0.0.1:{free_port()}").start()
    good = Service(server.url).start()
    try:
        for order in ((astray, good), (good, astray)):
            with Cluster(both(list(order))) as cluster:
                store = cluster.store(options=CALM)
                keys = digests(3)
                store.settled()
                store.write(store.chain(keys))
                assert store.lookup(keys).prefix == 3
    finally:
        astray.stop()
        good.stop()


def test_a_manager_that_returns_is_found_again_by_a_client_with_its_address_alone(
    server: Server,
) -> None:
    service = Service(server.url).start()
    try:
        with Cluster(service.url) as cluster:
            store = cluster.store()
            keys = digests(3)
            store.write(store.chain(keys))
            store.settled()
            service.kill()
            eventually(lambda: store.registry.state is State.DOWN)
            with pytest.raises(RegistryUnavailable):
                store.lookup(keys)
            service.start()
            store.settled()
            assert store.lookup(keys).prefix == 3
    finally:
        service.stop()


class _Counting(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    seen: list[str]

    def do_POST(self) -> None:
        self.seen.append(self.path)
        self.rfile.read(int(self.headers["content-length"]))
        self.close_connection = True  # no answer: it may or may not have been carried out

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def silent_managers(n: int) -> Iterator[tuple[str, list[str]]]:
    """Managers that take requests and close without an answer; what they were sent."""
    seen: list[str] = []
    kind = type("Kind", (_Counting,), {"seen": seen})
    servers = [http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) for _ in range(n)]
    threads = [threading.Thread(target=server.serve_forever, args=(0.01,)) for server in servers]
    for thread in threads:
        thread.start()
    try:
        yield ",".join(f"http://127.0.0.1:{server.server_port}" for server in servers), seen
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()


@pytest.mark.parametrize(
    ("name", "times"),
    [("lookup", 3), ("claim", 3), ("heartbeat", 3), ("publish", 1), ("remove", 1), ("clear", 1)],
)
def test_only_what_may_arrive_twice_is_sent_again(name: str, times: int) -> None:
    """To each address, and once more to the first, whose connection had rested."""
    with silent_managers(2) as (urls, seen):
        connection = HttpConnection(HttpEndpoint.parse(urls), 1.0, 0)
        with pytest.raises(ConnectionResetError):
            connection.exchange(http_message.request(name, {}), soon(1000))
        assert seen == [f"/v1/{name}"] * times
        assert not connection.clean
        connection.close()


def test_an_idle_connection_follows_the_others_to_another_manager(
    services: list[Service],
) -> None:
    """So that a frozen manager does not cost every connection its share of a deadline."""
    endpoint = HttpEndpoint.parse(both(services))
    connection = HttpConnection(endpoint, 1.0, 0)
    frozen = services[endpoint.addresses.index(endpoint.first)]
    frozen.signal(signal.SIGSTOP)
    endpoint.failed(endpoint.first)
    began = time.monotonic()
    assert connection.exchange(http_message.request("lookup", {}), soon(4000))
    assert time.monotonic() - began < 1
    connection.close()
    frozen.signal(signal.SIGCONT)


class _Counted:
    """A socket whose calls that let go of the GIL are counted."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self.calls: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name not in ("setsockopt", "close"):
            self.calls.append(name)
        return getattr(self._stream, name)


def test_a_call_is_one_send_and_one_receive(services: list[Service]) -> None:
    with Cluster(services[0].url) as cluster:
        store = cluster.store(options=CALM)
        keys = digests(128)
        store.write(store.chain(keys))
        connection = store.registry.driver.pool.take(soon())
        assert isinstance(connection, HttpConnection)
        counted = _Counted(connection._stream)
        connection._stream = cast(socket.socket, counted)
        store.registry.driver.pool.give(connection)
        assert store.registry.lookup(keys, [store.member.medium], soon()).prefix == 128
        assert counted.calls == ["sendall", "recv"]


def test_an_idle_connection_that_was_closed_meanwhile_is_made_anew(server: Server) -> None:
    service = Service(server.url).start()
    try:
        pool = HttpPool(HttpEndpoint.parse(service.url), 1000)
        connection = pool.connect(soon())
        assert isinstance(connection, HttpConnection)
        service.kill()
        service.start()
        connection._used_s -= 60
        request = http_message.request("publish", {})  # which is not sent twice
        assert b"422" in connection.exchange(request, soon())[:20]
        connection.close()
    finally:
        service.stop()
