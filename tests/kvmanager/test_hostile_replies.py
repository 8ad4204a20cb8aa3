"""Whatever a server sends is an answer or an error, the same over each kind of connection."""

from __future__ import annotations

import asyncio
import random
import socket
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kvmanager import keys, resp
from kvmanager.aio_connection import AsyncConnection
from kvmanager.connection import Connection
from kvmanager.probe import Probe, Routes
from tests.kvmanager.members import NAMESPACE, soon

NOW, INTERVAL = 100_000, 600
RUNS = 1500
Answer = Any
ODD_REPLIES = [
    b"-WRONGTYPE no\r\n",
    b":-5\r\n",
    b"+\r\n",
    b"*2\r\n$1\r\na\r\n*-1\r\n",
    b"$67108865\r\n",
    b"$99999999999\r\n",
    b"$-2\r\n",
    b"$\r\n",
    b"$0\r\n\r\n",
    b"$2\r\nabcd",
    b"\r\n",
]
REFUSED = [
    b"$" + b"9" * 5000 + b"\r\n",
    b"$00000000001\r\nx\r\n",
    b"$" + b"1" * 65_600,
    b"+" + b"x" * 65_600,
    b"+OK\r\n+OK\r\n",
    b"$2\r\nxxxx",
    b"*1\r\n",
    b"$67108864\r\n",
    b"",
]


def made_of(stream: socket.socket) -> Any:
    return SimpleNamespace(_sock=stream)


def over_c(stream: socket.socket, run: Callable[[Connection], Answer]) -> Answer:
    return run(Connection(made_of(stream)))


def over_python(stream: socket.socket, run: Callable[[Connection], Answer]) -> Answer:
    connection = Connection(made_of(stream))
    connection._native = False
    return run(connection)


def over_asyncio(
    stream: socket.socket, run: Callable[[AsyncConnection], Answer], *, stands_still: bool = False
) -> Answer:
    async def talk() -> Answer:
        reader, writer = await asyncio.open_connection(sock=stream)
        made = cast("Any", SimpleNamespace(_reader=reader, _writer=writer))
        try:
            return await run(AsyncConnection(made, 0, lambda: stands_still))
        finally:
            writer.close()

    return asyncio.run(talk())


def past_the_event_loop(stream: socket.socket, run: Callable[[AsyncConnection], Answer]) -> Answer:
    return over_asyncio(stream, run, stands_still=True)


TWINS = [over_c, over_python, over_asyncio, past_the_event_loop]


def answer(twin: Callable[..., Answer], raw: bytes, run: Callable[[Any], Answer]) -> Answer:
    """What comes of it where the server sends `raw` and goes; None for an error."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        theirs.sendall(raw)
        theirs.shutdown(socket.SHUT_WR)
        try:
            return twin(ours, run)
        except ConnectionError:
            return None


@pytest.mark.parametrize("twin", TWINS)
@pytest.mark.parametrize("raw", REFUSED, ids=lambda raw: repr(raw[:16]))
def test_what_is_not_one_reply_is_refused(twin: Callable[..., Answer], raw: bytes) -> None:
    assert answer(twin, raw, lambda c: c.exchange(b"PING\r\n", soon())) is None


def entry(rng: random.Random) -> bytes:
    size = rng.randint(1, 48)
    stamp = (NOW - rng.randrange(620)).to_bytes(4, "big")
    head = bytes((64 + size,)) + stamp + bytes((rng.choice((0, *[64] * 9)), 0))
    return resp.bulk(head + rng.randbytes(size))


def hostile(rng: random.Random, probe: Probe) -> bytes:
    """Mostly what a server would send to a probe, more or less spoilt."""
    kinds: list[Callable[[], bytes]] = [
        lambda: entry(rng),
        lambda: resp.bulk(None),
        lambda: resp.bulk(rng.randbytes(rng.randrange(60))),
        lambda: rng.choice(ODD_REPLIES),
    ]
    weights = [8, 1, rng.choice((0, 1)), rng.choice((0, 0, 1))]
    pages = len(probe.digests) * len(probe.media)
    raw = b"".join(kind() for kind in rng.choices(kinds, weights, k=pages))
    raw += probe.route.parts[3] if rng.random() < 0.7 else b"$1\r\n7\r\n" * (len(probe.media) + 1)
    spoilt = bytearray(raw + b"$1\r\nK\r\n" * (rng.random() < 0.1))
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        at = rng.randrange(len(spoilt))
        if rng.random() < 0.3:
            spoilt[at:] = b""
        elif rng.random() < 0.5:
            spoilt[at] = rng.randrange(256)
        else:
            del spoilt[at]
        if not spoilt:
            break
    return bytes(spoilt)


def asked_by(probe: Probe, connection: Any) -> Answer:
    return connection.probe(probe, soon())


def test_a_lookup_comes_to_the_same_over_each_kind_of_connection() -> None:
    rng = random.Random(20)  # noqa: S311 - so that a failure comes again
    routes = Routes(keys.tag(NAMESPACE.fingerprint), INTERVAL)
    answers = 0
    for run in range(RUNS):
        media = tuple(rng.randbytes(16) for _ in range(rng.randint(1, 3)))
        asked = [rng.randbytes(16) for _ in range(rng.randint(1, 6))]
        why = rng.random() < 0.1
        probe = Probe(routes, 3, media, asked, why, NOW, routes.find(3, media))
        raw = hostile(rng, probe)
        ask = partial(asked_by, probe)
        first = answer(over_c, raw, ask)
        assert answer(over_python, raw, ask) == first
        if run % 10 == 0:
            assert answer(over_asyncio, raw, ask) == first
            assert answer(past_the_event_loop, raw, ask) == first
        answers += first is not None
    assert RUNS // 5 < answers < RUNS, "both kinds are met"
