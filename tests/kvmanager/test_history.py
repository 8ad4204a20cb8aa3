"""Samples of a tenant's sums: bounded, kept once a step, read back as a curve."""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator

import pytest

from kvmanager import figures, keys
from kvmanager.control import history, leases
from kvmanager.control.history import MAX_SAMPLE_BYTES, RESOLUTIONS, Sample
from kvmanager.control.leases import Lease, LeaseLost
from tests.kvmanager.reporters import Redis
from tests.kvmanager.servers import Server

TENANT = keys.tenant_tag("tenant")


@pytest.fixture
def redis(server: Server) -> Iterator[Redis]:
    with Redis(server.url) as made:
        yield made


@pytest.fixture
def lease(redis: Redis) -> Lease:
    return _taken(redis)


def _taken(redis: Redis, ttl_ms: int = 60_000) -> Lease:
    key = leases.task_key(TENANT, b"history")
    taken = redis.run(leases.take(key, os.urandom(16), ttl_ms))
    assert taken is not None
    return taken


def test_a_sample_is_read_as_it_was_kept() -> None:
    sums = {"get.pages": 1 << 52, "age.3": 4, "age.7": 1, "op.3fs.get.40": 9, "loaded.tokens": 0}
    sample = Sample(12.5, sums, 3, 4096, 2)
    assert history.unpacked(12.5, history.packed(sample)) == sample


def test_a_sample_of_every_counter_there_is_stays_small() -> None:
    sums = {name: pow(3, n, (1 << 50) - 27) for n, name in enumerate(sorted(figures.names()))}
    made = history.packed(Sample(0, sums))
    assert len(made) <= MAX_SAMPLE_BYTES
    kept = history.unpacked(0, made)
    assert kept is not None
    assert kept.sums["get.pages"] == sums["get.pages"]


@pytest.mark.parametrize(
    "kept", [b"", b"x", b"\x78\x9c\x03\x00\x00\x00\x00\x01", zlib.compress(b"\xc0")]
)
def test_what_is_no_sample_is_passed_over(kept: bytes) -> None:
    assert history.unpacked(0, kept) is None


def test_a_counter_that_began_anew_grew_by_what_it_is() -> None:
    assert history.increase({"a": 5, "b": 3, "c": 2}, {"a": 2, "b": 9}) == {"a": 3, "b": 3, "c": 2}


@pytest.mark.parametrize(
    ("window_s", "step_s"), [(60, 10), (3600, 10), (3601, 60), (86_400, 60), (1_209_600, 600)]
)
def test_a_window_is_read_from_the_finest_samples_that_reach_so_far(
    window_s: int, step_s: int
) -> None:
    assert history.resolution(window_s).step_s == step_s


def test_a_sample_is_kept_once_a_step(redis: Redis, lease: Lease) -> None:
    assert redis.run(history.add(lease, TENANT, Sample(0, {"get.pages": 1}))) == len(RESOLUTIONS)
    assert redis.run(history.add(lease, TENANT, Sample(0, {"get.pages": 2}))) == 0
    (only,) = redis.run(history.curve(TENANT, 3600, 60))
    assert only.sums == {"get.pages": 1}


def test_who_lost_the_lease_keeps_nothing(redis: Redis, server: Server, lease: Lease) -> None:
    with server.client() as client:
        client.delete(lease.key)
    other = _taken(redis)
    with pytest.raises(LeaseLost):
        redis.run(history.add(lease, TENANT, Sample(0)))
    assert redis.run(history.curve(TENANT, 3600, 60)) == []
    assert redis.run(history.add(other, TENANT, Sample(0))) == len(RESOLUTIONS)


def test_streams_are_of_a_fixed_length_and_end_when_nobody_adds(
    redis: Redis, server: Server, lease: Lease
) -> None:
    finest = history.keys_of(TENANT)[0]
    with server.client() as client:
        for n in range(RESOLUTIONS[0].length + 50):
            client.xadd(finest, {"s": history.packed(Sample(n))}, id=f"{n + 1}-0")
        redis.run(history.add(lease, TENANT, Sample(0)))
        assert client.xlen(finest) == RESOLUTIONS[0].length
        assert 0 < client.ttl(finest) <= RESOLUTIONS[0].reach_s


def test_a_curve_has_as_many_samples_as_asked_for_and_the_one_before_the_window(
    redis: Redis, server: Server
) -> None:
    now_ms = int(_now_s(server) * 1000)
    with server.client() as client:
        for age_s in range(1000, 0, -10):
            kept = history.packed(Sample(0, {"get.pages": 1000 - age_s}))
            client.xadd(history.keys_of(TENANT)[0], {"s": kept}, id=f"{now_ms - age_s * 1000}-0")
    samples = redis.run(history.curve(TENANT, 300, 7))
    assert [sample.sums["get.pages"] for sample in samples] == [700, 750, 800, 850, 900, 950, 990]
    everything = redis.run(history.curve(TENANT, 3600, 3))
    assert everything[0].sums["get.pages"] == 0  # the oldest there is


def _now_s(server: Server) -> float:
    with server.client() as client:
        seconds, us = client.time()
        return float(seconds) + float(us) / 1e6
