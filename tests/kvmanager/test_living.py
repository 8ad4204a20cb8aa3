"""Nothing of a living process is swept, and what is swept is told to whoever comes back."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kvmanager import keys
from kvmanager.control import events, processes
from kvmanager.control.sweep import Sweep
from tests.kvmanager.reporters import Redis
from tests.kvmanager.servers import Server
from tests.kvmanager.sessions import LEASE, NAMES, ORDERS, TAG, Session, pass_time, swept

HOUR_S = 3600


@pytest.fixture
def carrier(server: Server) -> Iterator[Redis]:
    with Redis(server.url) as made:
        yield made


def process(carrier: Redis, roots: int = 1, shared: bool = False) -> list[Session]:
    """The sessions of a new process that keeps pages on so many media of its own."""
    uuid = os.urandom(16)
    sessions = [Session(carrier, uuid, os.urandom(16), shared=shared) for _ in range(roots)]
    for session in sessions:
        session.join()
        session.publish(50)
    return sessions


def test_a_medium_of_a_process_stays_while_another_of_its_sessions_is_heard(
    server: Server, carrier: Redis
) -> None:
    one, other = process(carrier, roots=2)
    with server.client() as client:
        pass_time(client, 2 * HOUR_S, looked=True)
        one.beat()
        swept(carrier)
        assert client.hget(NAMES, "dropping") in (None, b"")
    assert other.beat().sequence == other.core.sequence
    assert other.found() == 50


def test_a_process_that_was_absent_too_long_is_told_to_announce_all(
    server: Server, carrier: Redis
) -> None:
    one, other = process(carrier, roots=2)
    with server.client() as client:
        pass_time(client, 2 * HOUR_S, looked=True)
        assert swept(carrier).counters["stores"] == 2
    for session in (one, other):
        assert session.found() == 0
        assert session.beat().sequence == -1
        session.catch_up()
        assert session.found() == 50


@pytest.mark.parametrize("shared", [False, True])
def test_nothing_is_swept_where_the_registry_itself_was_away(
    server: Server, carrier: Redis, shared: bool
) -> None:
    """With its data kept. The first one back sweeps before the others are heard."""
    (first,), (late,) = process(carrier, shared=shared), process(carrier, shared=shared)
    carrier.run(processes.order(TAG, [late.member.process], "off"))
    with server.client() as client:
        swept(carrier)
        pass_time(client, 30 * 24 * HOUR_S, looked=False)
        first.beat()
        assert not any(swept(carrier).counters.values())
        pass_time(client, 300, looked=True)
        assert not any(swept(carrier).counters.values())
        assert late.beat().mode == "off"
        assert late.found() == 50


def test_a_clock_that_was_set_back_ends_no_sweeping(server: Server, carrier: Redis) -> None:
    process(carrier)
    with server.client() as client:
        now_s = int(client.time()[0])
        swept(carrier)
        client.hset(NAMES, mapping={"back": now_s + 10 * HOUR_S, "looked": now_s + 10 * HOUR_S})
        swept(carrier)
        pass_time(client, 2 * HOUR_S, looked=True)
        assert swept(carrier).counters["stores"] == 1


def test_an_order_lasts_as_long_as_its_process_and_an_hour_more(
    server: Server, carrier: Redis
) -> None:
    (session,) = process(carrier, shared=True)
    carrier.run(processes.order(TAG, [session.member.process], "off"))
    with server.client() as client:
        swept(carrier)
        for _ in range(3):
            pass_time(client, 50 * 60, looked=True)
            assert swept(carrier).counters["orders"] == 0
            assert session.beat().mode == "off"
        pass_time(client, 62 * 60, looked=True)
        assert swept(carrier).counters["orders"] == 1
        assert client.hlen(ORDERS) == 0


def test_sessions_of_one_process_do_not_share_a_sweep(server: Server, carrier: Redis) -> None:
    """One is interrupted before it unlinks; another one ends what it began, and somebody joins."""
    medium = os.urandom(16)
    gone = Session(carrier, os.urandom(16), medium, shared=False)
    gone.join()
    gone.publish(50)
    with server.client() as client:
        swept(carrier)
        pass_time(client, 2 * HOUR_S, looked=True)
        slow = Sweep(TAG)
        while not client.hget(NAMES, "dropping"):
            assert carrier.run(slow.step())
        assert not carrier.run(Sweep(TAG).step()), "there is one at a time"
        client.delete(LEASE)
        swept(carrier)
    new = Session(carrier, os.urandom(16), medium, shared=False)
    new.join()
    new.publish(50)
    swept(carrier, slow)
    assert new.found() == 50


def test_nothing_is_published_on_a_medium_that_is_dropped(server: Server, carrier: Redis) -> None:
    """Or nobody would ever find it there, nor sweep it."""
    (session,) = process(carrier)
    with server.client() as client:
        swept(carrier)
        pass_time(client, 2 * HOUR_S, looked=True)
        sweep = Sweep(TAG)
        while not client.hget(NAMES, "dropping"):
            assert carrier.run(sweep.step())
        session.publish(5)
        swept(carrier, sweep)
        session.publish(5)
        assert [key for key in client.scan_iter() if key[:1] == b"p"] == []
    session.join()
    assert session.found() == 60


def test_each_store_of_a_process_is_told_as_joined_and_again_after_it_was_lost(
    server: Server, carrier: Redis
) -> None:
    (other,) = process(carrier)
    start = carrier.run(events.listen(TAG))
    assert start is not None
    sessions = process(carrier, roots=2)
    with server.client() as client:
        client.delete(b"r" + TAG + sessions[0].member.process)
    swept(carrier)
    for session in (*sessions, other):
        session.beat()
    heard = carrier.run(events.listen(TAG, start.last))
    assert heard is not None
    told = [(event.kind, event.store) for event in heard.events if event.kind in ("joined", "lost")]
    stores = [session.member.store for session in sessions]
    assert told[:2] == [("joined", store) for store in stores]
    assert sorted(told[2:4]) == sorted(("lost", store) for store in stores)
    assert told[4:] == [("joined", store) for store in stores]


def test_many_media_are_dropped_a_hundred_at_a_time(server: Server, carrier: Redis) -> None:
    process(carrier)
    with server.client() as client:
        swept(carrier)
        record = client.hget(NAMES, next(f for f in client.hkeys(NAMES) if f.startswith(b"m:")))
        media = [keys.medium_id(os.urandom(16)) for _ in range(1024)]
        assert record is not None
        client.hset(NAMES, mapping={b"m:" + medium: record for medium in media})
        client.hset(NAMES, "media", (client.hget(NAMES, "media") or b"") + b"".join(media))
        client.hset(NAMES, mapping={"looked": int(client.time()[0]), "back": 1})
        swept(carrier)
        assert len(client.hget(NAMES, "media") or b"") == 8
        assert client.hget(NAMES, "dropping") == b""
