"""What only the asyncio client has: cancellation, its event loop, its own connections."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from hicache_backends.errors import ConfigError, RegistryRefused, RegistryUnavailable
from hicache_backends.segment.format import Location
from hicache_backends.storage import ROOT, PageEntry
from kvmanager.aio import AsyncRegistry, connect_async_registry
from kvmanager.model import Claim, Member, Orders, Published, Removal, State
from kvmanager.options import RegistryOptions
from tests.kvmanager.members import FAST, NAMESPACE, digests, soon
from tests.kvmanager.servers import Server

MEDIUM = os.urandom(16)
SLOW = RegistryOptions(heartbeat_ms=60_000, ttl_ms=180_000, touch_interval_ms=1)
"""Nothing but what the test does, and no deadline but its own."""


class Node:
    """One member with its pages."""

    def __init__(self) -> None:
        self.member = Member(os.urandom(16), "host", "server", os.urandom(16), MEDIUM)
        self.pages: list[PageEntry] = []
        self.orders: list[Orders] = []

    async def connect(self, url: str, options: RegistryOptions = FAST) -> AsyncRegistry:
        return await connect_async_registry(
            url, NAMESPACE, self.member, entries=self._entries, options=options
        )

    def write(self, keys: list[bytes]) -> list[PageEntry]:
        made = [
            PageEntry(key, ROOT, Location(self.member.store, 0, n, 4096, n, 7).pack())
            for n, key in enumerate(keys, len(self.pages))
        ]
        self.pages += made
        return made

    async def obey(self, orders: Orders) -> None:
        self.orders.append(orders)
        if orders.clear:
            self.pages.clear()

    def _entries(self) -> Iterator[PageEntry]:
        yield from self.pages


@pytest.fixture
def node() -> Node:
    return Node()


@pytest.fixture
async def registry(node: Node, server: Server) -> AsyncIterator[AsyncRegistry]:
    options = dataclasses.replace(
        FAST, connect_timeout_ms=5000
    )  # a hundred tasks may connect at once
    async with await node.connect(server.url, options) as registry:
        yield registry


async def eventually(happened: Callable[[], bool], within_s: float = 5) -> None:
    give_up = time.monotonic() + within_s
    while not happened():
        assert time.monotonic() < give_up, "it did not happen in time"
        await asyncio.sleep(0.005)


async def test_every_call_is_a_coroutine(registry: AsyncRegistry, node: Node) -> None:
    registry.start(node.obey)
    keys = digests(3)
    token, claims = await registry.claim(keys, soon())
    assert claims == [Claim.GRANTED] * 3
    entries = node.write(keys)
    assert await registry.publish(entries[:2], token, soon()) == [Published.OK] * 2
    await registry.abort(keys[2:], token, soon())
    found = await registry.lookup(keys, [MEDIUM], soon())
    assert found.locations == [entries[0].location, entries[1].location, b""]
    await registry.report_bad(keys[0], entries[0].location, soon())
    assert await registry.remove(entries[1:2], soon()) == [Removal.REMOVED]
    assert (await registry.lookup(keys, [MEDIUM], soon())).prefix == 0
    assert await registry.clear_namespace(soon()) == 1
    await eventually(lambda: any(orders.clear for orders in node.orders))
    await eventually(lambda: registry.state is State.UP)
    assert registry.stats()["failures"] == 0


async def test_many_tasks_at_once_share_few_connections(
    registry: AsyncRegistry, node: Node, server: Server
) -> None:
    keys = digests(100)
    entries = node.write(keys)
    published = await asyncio.gather(*(registry.publish([entry], b"", soon()) for entry in entries))
    assert published == [[Published.OK]] * 100
    found = await asyncio.gather(*(registry.lookup([key], [MEDIUM], soon()) for key in keys))
    assert [f.locations for f in found] == [[entry.location] for entry in entries]
    with server.client() as client:
        assert int(client.info("clients")["connected_clients"]) < 20
    assert registry.stats()["failures"] == 0


Call = Callable[[AsyncRegistry, Node], Awaitable[object]]
CALLS: dict[str, Call] = {
    "lookup": lambda registry, _: registry.lookup(digests(3), [MEDIUM], soon(200)),
    "claim": lambda registry, _: registry.claim(digests(3), soon(200)),
    "publish": lambda registry, node: registry.publish(node.write(digests(3)), b"", soon(200)),
    "abort": lambda registry, _: registry.abort(digests(3), b"12345678", soon(200)),
    "remove": lambda registry, node: registry.remove(node.write(digests(3)), soon(200)),
    "report_bad": lambda registry, _: registry.report_bad(digests(1)[0], b"gone", soon(200)),
    "clear_namespace": lambda registry, _: registry.clear_namespace(soon(200)),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_call_on_a_stopped_server_ends_by_its_deadline(
    own_server: Server, node: Node, call: Call
) -> None:
    registry = await node.connect(own_server.url, SLOW)
    await registry.lookup(digests(1), [MEDIUM], soon())
    own_server.freeze()
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable, match="deadline"):
        await call(registry, node)
    assert 0.15 < time.monotonic() - began < 1
    own_server.thaw()
    await call(registry, node)
    await registry.close()


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_cancelled_call_ends_at_once_and_its_late_reply_reaches_nobody(
    own_server: Server, node: Node, call: Call
) -> None:
    registry = await node.connect(own_server.url, SLOW)
    keys = digests(2)
    entries = node.write(keys)
    await registry.publish(entries, b"", soon())
    own_server.freeze()
    trips = registry.stats()["round_trips"]
    calling = asyncio.ensure_future(call(registry, node))
    await eventually(lambda: registry.stats()["round_trips"] != trips)
    await asyncio.sleep(0)
    began = time.monotonic()
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling
    assert time.monotonic() - began < 0.1
    own_server.thaw()
    if call is not CALLS["clear_namespace"]:
        found = await registry.lookup(keys, [MEDIUM], soon())
        assert found.locations == [entry.location for entry in entries]
    await registry.close()


async def test_cancelled_publish_is_made_good_by_the_next_heartbeat(
    own_server: Server, node: Node
) -> None:
    registry = await node.connect(own_server.url)
    registry.start(node.obey)
    await eventually(lambda: registry.state is State.UP)
    own_server.freeze()
    keys = digests(3)
    publishing = asyncio.ensure_future(registry.publish(node.write(keys), b"", soon()))
    await asyncio.sleep(0.01)
    publishing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await publishing
    own_server.thaw()
    await eventually(lambda: registry.state is State.UP)
    assert (await registry.lookup(keys, [MEDIUM], soon())).prefix == 3
    await registry.close()


async def test_publish_cancelled_while_another_is_under_way_is_journalled(
    own_server: Server, node: Node
) -> None:
    registry = await node.connect(own_server.url, SLOW)
    own_server.freeze()
    first = asyncio.ensure_future(registry.publish(node.write(digests(1)), b"", soon()))
    second = asyncio.ensure_future(registry.publish(node.write(digests(2)), b"", soon()))
    await asyncio.sleep(0.01)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert registry.stats()["journal_entries"] == 3
    own_server.thaw()
    assert await first == [Published.OK]
    await registry.close()


async def test_registry_that_went_is_noticed_at_once_and_joined_again(
    own_server: Server, node: Node
) -> None:
    registry = await node.connect(own_server.url)
    registry.start(node.obey)
    keys = digests(3)
    await registry.publish(node.write(keys), b"", soon())
    own_server.kill()
    with pytest.raises(RegistryUnavailable):
        await registry.lookup(keys, [MEDIUM], soon())
    await eventually(lambda: registry.state is State.DOWN)
    began = time.monotonic()
    for _ in range(50):
        with pytest.raises(RegistryUnavailable, match="down"):
            await registry.lookup(keys, [MEDIUM], soon())
    assert time.monotonic() - began < 0.1
    own_server.start()
    await eventually(lambda: registry.state is State.UP)
    assert (await registry.lookup(keys, [MEDIUM], soon())).prefix == 3
    await registry.close()


async def test_orders_are_carried_out_in_the_event_loop_and_repeated_until_they_are(
    registry: AsyncRegistry, node: Node
) -> None:
    attempts: list[asyncio.AbstractEventLoop] = []

    async def obey(orders: Orders) -> None:
        if orders.clear:
            attempts.append(asyncio.get_running_loop())
            if len(attempts) < 3:
                await asyncio.sleep(10)
        await node.obey(orders)

    registry.start(obey)
    await eventually(lambda: registry.state is State.UP)
    await registry.clear_namespace(soon())
    await eventually(lambda: len(attempts) >= 3 and registry.state is State.UP)
    assert set(attempts) == {asyncio.get_running_loop()}


async def test_heartbeats_go_on_while_the_event_loop_is_busy(server: Server, node: Node) -> None:
    options = RegistryOptions(heartbeat_ms=100, ttl_ms=800)
    async with await node.connect(server.url, options) as registry:
        registry.start(node.obey)
        await eventually(lambda: registry.state is State.UP)
        time.sleep(1.5 * options.ttl_ms / 1000)  # this is what is tested
        with server.client() as client:
            assert client.keys(b"r*")


async def test_embedded_registry_is_shared_and_ends_with_its_users(
    node: Node, tmp_path: Path
) -> None:
    other = Node()
    url = f"embedded:{tmp_path}"
    async with await node.connect(url) as registry, await other.connect(url) as second:
        keys = digests(2)
        await registry.publish(node.write(keys), b"", soon())
        assert (await second.lookup(keys, [MEDIUM], soon())).prefix == 2
    await eventually(lambda: not (tmp_path / "valkey.sock").exists())


async def test_password_is_given_and_a_wrong_one_refused(
    make_server: Callable[..., Server], node: Node
) -> None:
    server = make_server("--requirepass", "secret")
    server.start(wait=False)
    await eventually(lambda: Path(server.socket_path).exists())
    url = f"redis://:secret@127.0.0.1:{server.port}"
    async with await node.connect(url) as registry:
        assert await registry.publish(node.write(digests(1)), b"", soon()) == [Published.OK]
    with pytest.raises(RegistryRefused, match="password") as refusal:
        await node.connect(url.replace("secret", "wrong"))
    assert "wrong@" not in str(refusal.value)


async def test_unix_socket_works(node: Node, server: Server) -> None:
    async with await node.connect(server.unix_url) as registry:
        assert await registry.publish(node.write(digests(1)), b"", soon()) == [Published.OK]


async def test_what_is_no_endpoint_is_an_error_of_the_configuration(node: Node) -> None:
    with pytest.raises(ConfigError, match="embedded"):
        await node.connect("ftp://127.0.0.1:8000")


async def test_cancelled_connecting_leaves_no_session(own_server: Server, node: Node) -> None:
    own_server.freeze()
    connecting = asyncio.ensure_future(node.connect(own_server.url))
    await asyncio.sleep(0.01)
    connecting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await connecting
    own_server.thaw()

    def clients() -> int:
        with own_server.client() as client:
            return int(client.info("clients")["connected_clients"])

    await eventually(lambda: clients() == 1)


async def test_impatient_call_does_not_make_a_slow_registry_count_as_down(
    own_server: Server, node: Node
) -> None:
    registry = await node.connect(own_server.url, SLOW)
    own_server.freeze()
    with pytest.raises(RegistryUnavailable, match="in time"):
        await registry.lookup(digests(1), [MEDIUM], soon(5))  # needs a connection first
    own_server.thaw()
    assert (await registry.lookup(digests(1), [MEDIUM], soon())).prefix == 0
    await registry.close()
