"""A tenant's sums never fall: not when namespaces are forgotten, nor when they cannot be read."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kvmanager import figures, keys
from kvmanager.control import history, leases, ledger
from kvmanager.control.leases import Lease, LeaseLost
from kvmanager.control.ledger import Ledger
from kvmanager.reports import Hot
from kvmanager.service.loops.history import TASK, Sampling
from kvmanager.service.loops.popularity import Ranking
from tests.kvmanager.loop_steps import run_step
from tests.kvmanager.reporters import Redis, Reporter
from tests.kvmanager.servers import Server

TENANT = keys.tenant_tag("red")
A, B = (keys.tag(name * 9) for name in (b"a", b"b"))


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    with Redis(server.url) as made:
        yield made


@pytest.fixture
def lease(redis: Redis) -> Lease:
    taken = redis.run(leases.take(leases.task_key(TENANT, TASK), os.urandom(16), 60_000))
    assert taken is not None
    return taken


def test_a_namespace_that_cannot_be_read_counts_with_what_it_had() -> None:
    known = Ledger({A: {"get.pages": 10}, B: {"get.pages": 5}}, {"get.pages": 100})
    assert known.total({A: {"get.pages": 12, "get.hits": 1}}) == {"get.pages": 117, "get.hits": 1}
    assert known.total({A: {"get.pages": 9}, B: {"get.pages": 6}}) == {"get.pages": 116}


def test_a_namespace_that_began_anew_counts_twice_and_one_that_lost_a_little_does_not() -> None:
    known = Ledger({A: {"get.pages": 1000}})
    assert known.total({A: {"get.pages": 3}}) == {"get.pages": 1003}
    assert known.total({A: {"get.pages": 990}}) == {"get.pages": 1000}


def test_what_is_kept_is_read_again_however_much_it_is(redis: Redis, lease: Lease) -> None:
    full = {name: pow(3, n, (1 << 63) - 25) for n, name in enumerate(sorted(figures.names()))}
    tags = [keys.tag(n.to_bytes(9, "big")) for n in range(150)]
    seen = {tag: {"get.pages": n + 1} for n, tag in enumerate(tags)} | {A: full}
    redis.run(ledger.keep(lease, TENANT, Ledger(), seen, ()))
    assert redis.run(ledger.read(TENANT)) == Ledger(seen, {})
    redis.run(ledger.keep(lease, TENANT, Ledger(seen), {A: full}, tags))
    total = sum(range(1, 151))
    assert redis.run(ledger.read(TENANT)) == Ledger({A: full}, {"get.pages": total})


def test_who_lost_the_lease_keeps_nothing(redis: Redis, server: Server, lease: Lease) -> None:
    with server.client() as client:
        client.set(lease.key, b"another")
    with pytest.raises(LeaseLost):
        redis.run(ledger.keep(lease, TENANT, Ledger(), {A: {"get.pages": 1}}, ()))
    assert redis.run(ledger.read(TENANT)) == Ledger()


def test_it_ends_with_the_samples_and_passes_over_what_cannot_be_read(
    redis: Redis, server: Server, lease: Lease
) -> None:
    redis.run(ledger.keep(lease, TENANT, Ledger(), {A: {"get.pages": 1}}, ()))
    with server.client() as client:
        assert 0 < client.ttl(b"v" + TENANT) <= history.RESOLUTIONS[-1].reach_s
        client.hset(b"v" + TENANT, keys.tag_bytes(B), b"rubbish")
    assert redis.run(ledger.read(TENANT)).total({}) == {"get.pages": 1}


def test_samples_never_fall_when_a_namespace_is_forgotten_or_broken_and_comes_back(
    redis: Redis, server: Server
) -> None:
    stays, leaves = (Reporter(redis, tenant="red", model=model) for model in ("one", "two"))
    for store, pages in ((stays, 7), (leaves, 1000)):
        store.beat()
        store.report({"get.pages": pages})
    assert sampled(redis, server) == 1007
    with server.client() as client:
        counted = client.dump(b"t" + leaves.tag)
        client.set(b"t" + leaves.tag, "no hash")
        assert sampled(redis, server) == 1007
        client.restore(b"t" + leaves.tag, 0, counted, replace=True)
        stays.report({"get.pages": 1})
        assert sampled(redis, server) == 1008
        for family in (b"n", b"s", b"t", b"i"):
            client.delete(family + leaves.tag)
        client.srem(keys.TAGS, leaves.tag)
        assert sampled(redis, server) == 1008
        assert redis.run(ledger.read(TENANT)).gone == {"get.pages": 1000}
    assert sampled(redis, server) == 1008
    again = Reporter(redis, tenant="red", model="two")
    again.beat()
    again.report({"get.pages": 2})
    assert sampled(redis, server) == 1010


def test_a_tenant_with_sums_beyond_all_measure_stops_no_other(redis: Redis, server: Server) -> None:
    huge = Reporter(redis, tenant="blue", page_tokens=1 << 53)
    plain = Reporter(redis, tenant="red")
    for store in (huge, plain):
        store.beat()
        store.report({"get.hits": 1 << 53})
    assert sampled(redis, server, "get.hits") == 1 << 53
    (kept,) = redis.run(history.curve(keys.tenant_tag("blue"), 60, 2))
    assert kept.sums["loaded.tokens"] == figures.MAX_SUM


def test_a_tenant_whose_keys_are_broken_stops_no_other(redis: Redis, server: Server) -> None:
    for tenant in ("blue", "red"):
        store = Reporter(redis, tenant=tenant)
        store.beat()
        store.report({"get.pages": 4}, hot=(Hot(b"d" * 16, 3, 9),))
    blue = keys.tenant_tag("blue")
    with server.client() as client:
        for key in (*history.keys_of(blue), b"v" + blue, b"z" + blue, b"u" + blue):
            client.set(key, "neither hash nor stream")
        with pytest.raises(Exception, match="WRONGTYPE"):
            run_step(server, Ranking)
        assert client.exists(b"z" + TENANT) == 1
        with pytest.raises(Exception, match="WRONGTYPE"):
            run_step(server, Sampling)
    assert redis.run(history.curve(TENANT, 60, 2))[-1].sums["get.pages"] == 4


def sampled(redis: Redis, server: Server, name: str = "get.pages") -> int:
    """In a sample of now, by a service that has just begun."""
    with server.client() as client:
        client.delete(leases.task_key(TENANT, TASK), *history.keys_of(TENANT))
        client.delete(leases.task_key(keys.tenant_tag("blue"), TASK))
    run_step(server, Sampling)
    return redis.run(history.curve(TENANT, 60, 2))[-1].sums[name]
