"""The prefixes that are loaded most, merged from reports."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence

import pytest

from kvmanager import keys
from kvmanager.control import leases, popularity
from kvmanager.control.leases import Lease, LeaseLost
from kvmanager.control.popularity import HALF_LIFE_S, Told
from kvmanager.reports import Gauges, Hot, Record
from tests.kvmanager.members import digests
from tests.kvmanager.reporters import Redis
from tests.kvmanager.servers import Server

TENANT = keys.tenant_tag("tenant")
SPACE = keys.tag(b"namespace" + bytes(23))
PROCESS = os.urandom(16)


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    with Redis(server.url) as made:
        yield made


@pytest.fixture
def lease(redis: Redis) -> Lease:
    taken = redis.run(leases.take(leases.task_key(TENANT, b"popularity"), PROCESS, 60_000))
    assert taken is not None
    return taken


def _told(number: int, hot: Sequence[tuple[bytes, int]], process: bytes = PROCESS) -> Told:
    found = tuple(Hot(digest, loads, 7) for digest, loads in hot)
    return Told(SPACE, process, Record(number, Gauges(hot=found)))


def test_loads_of_all_processes_are_added_up_and_the_most_loaded_come_first(
    redis: Redis, lease: Lease
) -> None:
    rare, often = digests(2)
    other = os.urandom(16)
    told = [_told(1, [(rare, 2), (often, 3)]), _told(1, [(often, 4)], other)]
    assert redis.run(popularity.merge(lease, TENANT, told, 0)) == 2
    best, second = redis.run(popularity.hottest(TENANT, 5))
    assert (best.tag, best.digest, best.loads, best.pages) == (SPACE, often, 7.0, 7)
    assert (second.digest, second.loads) == (rare, 2.0)


def test_a_report_counts_once(redis: Redis, lease: Lease) -> None:
    (digest,) = digests(1)
    for number, new in ((1, 1), (1, 0), (2, 1)):
        told = [_told(number, [(digest, 5)])]
        assert redis.run(popularity.merge(lease, TENANT, told, 0)) == new
    assert redis.run(popularity.hottest(TENANT, 1))[0].loads == 10


def test_loads_count_half_after_an_hour(redis: Redis, lease: Lease) -> None:
    (digest,) = digests(1)
    redis.run(popularity.merge(lease, TENANT, [_told(1, [(digest, 8)])], 0))
    redis.run(popularity.merge(lease, TENANT, [], HALF_LIFE_S))
    assert redis.run(popularity.hottest(TENANT, 1))[0].loads == pytest.approx(4)
    redis.run(popularity.merge(lease, TENANT, [], 20 * HALF_LIFE_S))
    assert redis.run(popularity.hottest(TENANT, 1)) == []


def test_the_ranking_is_bounded(
    redis: Redis, server: Server, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(popularity, "MOST", 20)
    for number in range(1, 10):
        hot = [(digest, number) for digest in digests(16)]
        redis.run(popularity.merge(lease, TENANT, [_told(number, hot)], 0))
    assert len(redis.run(popularity.hottest(TENANT, 1000))) == 20
    with server.client() as client:
        assert client.hlen(b"z" + TENANT + b"pages") <= 2 * 20 + 16
        assert client.hlen(b"z" + TENANT + b"last") == 1


def test_who_lost_the_lease_adds_nothing(redis: Redis, server: Server, lease: Lease) -> None:
    with server.client() as client:
        client.set(lease.key, b"another")
    with pytest.raises(LeaseLost):
        redis.run(popularity.merge(lease, TENANT, [_told(1, [(digests(1)[0], 1)])], 0))
    assert redis.run(popularity.hottest(TENANT, 5)) == []
