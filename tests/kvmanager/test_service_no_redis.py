"""Where something else than a Redis answers: said with a reason, logged now and then, and forgotten
as soon as a Redis answers there."""

from __future__ import annotations

import asyncio
import logging
import socketserver
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from starlette.types import ASGIApp, Message

from hicache_backends.errors import RegistryError
from kvmanager import keys
from kvmanager.flow import Flow, T
from kvmanager.service.access import Access
from kvmanager.service.app import make_app
from kvmanager.service.backing import Backing
from kvmanager.service.feeds import Feed
from kvmanager.service.routes import DATA_ROUTES
from kvmanager.service.walks import Walks
from tests.kvmanager.members import NAMESPACE
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)
NO_GREETINGS = [
    b"$x\r\n",
    b"*x\r\n",
    b"*1\r\n" * 2000,
    b"+" + b"x" * 100_000,
    b"HTTP/1.1 400\r\n",
    b"",
]
LOOKUP = b'{"namespace": "%b", "epoch": 0, "digests": ["%b"], "media": ["%b"]}'


@contextmanager
def answering(port: int, reply: Callable[[bytes], bytes]) -> Iterator[None]:
    """Something at a port that answers so whatever it is sent; b"": it closes the connection."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                while (asked := self.request.recv(65_536)) and (said := reply(asked)):
                    self.request.sendall(said)

    class Server(socketserver.ThreadingTCPServer):
        allow_reuse_address = True
        daemon_threads = True

    with Server(("127.0.0.1", port), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def later(make_server: Callable[..., Server]) -> Server:
    """A Redis that is not started yet."""
    return make_server()


async def until(happened: Callable[[], bool]) -> None:
    give_up = time.monotonic() + 10
    while not happened():
        assert time.monotonic() < give_up, "it did not happen in time"
        await asyncio.sleep(0.02)


async def post(app: ASGIApp, path: str, body: bytes) -> tuple[int, str]:
    """The status and the text of an answer."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": body}

    async def send(message: Message) -> None:
        sent.append(message)

    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await app(scope, receive, send)
    return sent[0]["status"], sent[1]["body"].decode()


@pytest.mark.parametrize("greeting", NO_GREETINGS, ids=lambda g: repr(g[:8]))
async def test_a_redis_that_comes_after_something_else_is_used(
    later: Server, greeting: bytes
) -> None:
    backing = Backing(later.url)
    watching = asyncio.create_task(backing.watch())
    with answering(later.port, lambda _: greeting):
        with pytest.raises(RegistryError):
            await backing.ping()
        await until(lambda: backing.down)
        await asyncio.sleep(0.6)  # it has been looked at again
    later.start()
    await until(lambda: not backing.down)
    await backing.ping()
    watching.cancel()
    await backing.close()


async def test_a_fault_of_what_is_watched_does_not_end_the_watch(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    backing = Backing(server.url)
    (node,) = backing._nodes.values()
    looks = 0

    async def tend() -> None:
        nonlocal looks
        looks += 1
        raise ValueError("what nobody thought of")

    monkeypatch.setattr(node, "tend", tend)
    monkeypatch.setattr("kvmanager.service.backing.RETRY_S", 0.01)
    watching = asyncio.create_task(backing.watch())
    await until(lambda: looks > 3)
    watching.cancel()
    assert caplog.text.count("watching Redis went wrong") == 1


async def test_a_fault_of_what_is_heard_does_not_end_a_feed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvmanager.service.feeds.FAULT_S", 0.01)
    asked = 0

    async def run(flow: Flow[T], tag: bytes) -> T:
        nonlocal asked
        asked += 1
        raise ValueError("what nobody thought of")

    following = asyncio.create_task(Feed(run, TAG, asyncio.Lock()).follow())
    await until(lambda: asked > 3)
    assert not following.done()
    following.cancel()


async def test_a_fault_of_a_walk_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvmanager.service.walks.FAULT_S", 0.01)

    async def run(flow: Flow[T], tag: bytes) -> T:
        await asyncio.sleep(0.01)
        raise ValueError("what nobody thought of")

    walks, stirred = Walks(run, TAG, asyncio.Lock()), asyncio.Event()
    first = walks.board(stirred)
    await asyncio.sleep(0)
    second = walks.board(stirred)  # while the first one's walk is under way
    await until(lambda: first.ended and second.ended)
    walks.close()


@pytest.mark.parametrize(
    ("reply", "said"),
    [(b"$-1\r\n", "malformed"), (b":7\r\n", "malformed"), (b"-ERR no\r\n", "does not understand")],
)
async def test_a_redis_that_answers_nonsense_is_a_bad_gateway_and_logged_once(
    later: Server, caplog: pytest.LogCaptureFixture, reply: bytes, said: str
) -> None:
    backing = Backing(later.url)
    app = make_app(backing, Access(), None)
    digest = b"00" * 16
    body = LOOKUP % (NAMESPACE.encode().hex().encode(), digest, digest)
    route = next(route for route in DATA_ROUTES if route.name == "lookup")

    def respond(asked: bytes) -> bytes:
        return b"+OK\r\n" * asked.count(b"CLIENT") or reply

    with answering(later.port, respond), caplog.at_level(logging.WARNING):
        for _ in range(5):
            status, answer = await post(app, route.path, body)
            assert (status, said in answer) == (502, True), answer
        await backing.close()
    assert caplog.text.count("Redis refuses") == 1
