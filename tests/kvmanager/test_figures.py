from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmanager import figures, keys, reports, upkeep
from kvmanager.flow import Flow, answer
from kvmanager.reports import Gauges, Hot, Report, Reporter, StoreGauges, Totals
from kvmanager.scripts import Call
from tests.kvmanager.http_fixtures import service
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import NAMESPACE, Cluster, Store, eventually, soon
from tests.kvmanager.servers import Server
from tests.kvmanager.service_documents import namespace, post

__all__ = ["service"]

TAG = keys.tag(NAMESPACE.fingerprint)
GAUGES = Gauges(
    kind="3fs",
    mode="read",
    breaker="rebuilding",
    hung=True,
    version="1.2.3",
    started_s=1_700_000_000,
    pages=3,
    bytes=12_288,
    capacity_bytes=1 << 40,
    prefill_tokens_per_s=1234.5,
    stores=(StoreGauges(b"\xff" * 16, 3, 12_288, 1 << 40),),
    hot=(Hot(b"\x80" * 16, 7, 90),),
)


class Counts:
    """What a process counts, in place of a page store."""

    def __init__(self) -> None:
        self.counters: dict[str, int] = {}

    def __call__(self) -> Totals:
        return Totals(dict(self.counters), GAUGES)


@pytest.fixture(autouse=True)
def reports_at_every_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY_S", 0.0)


def counting(cluster: Cluster, **options: Any) -> tuple[Store, Counts]:
    member, counts = cluster.store(start=False, **options), Counts()
    member.registry.report(counts)
    member.start()
    return member, counts


def sums(server: Server) -> dict[str, int]:
    with server.client() as client:
        found = client.hgetall(b"t" + TAG)
    return {name.decode(): int(n) for name, n in found.items()}


def record(server: Server, process: bytes) -> reports.Record | None:
    with server.client() as client:
        packed = client.get(b"i" + TAG + process)
    return reports.unpacked(packed) if packed else None


def test_the_sums_of_processes_outlive_them_and_count_everything_once(
    server: Server, cluster: Cluster
) -> None:
    (one, ones), (two, twos) = counting(cluster), counting(cluster)

    def reached(pages: int) -> bool:
        return sums(server).get("get.pages") == pages

    for step in range(1, 6):
        ones.counters["get.pages"] = twos.counters["get.pages"] = 100 * step
        eventually(partial(reached, 200 * step))
    ones.counters["put.pages"] = 7
    one.registry.close()  # at once, before its next beat
    two.registry.close()
    assert sums(server) == {"get.pages": 1000, "put.pages": 7}
    found = record(server, one.member.process)
    assert found is not None
    assert found.number >= 2
    assert found.gauges == GAUGES


def test_what_was_counted_while_the_registry_was_down_is_told_afterwards(
    own_server: Server, own_cluster: Cluster
) -> None:
    member, counts = counting(own_cluster)
    counts.counters["get.pages"] = 5
    eventually(lambda: sums(own_server) == {"get.pages": 5})
    own_server.kill()
    counts.counters["get.pages"] = 50
    eventually(lambda: bool(member.registry.stats()["breaker_open"]))
    counts.counters["get.pages"] = 55
    own_server.start()
    eventually(lambda: sums(own_server).get("get.pages", 0) >= 50)
    member.registry.close()
    assert sums(own_server)["get.pages"] in (50, 55)  # 5 of before are gone if nothing was saved


def test_a_report_that_was_applied_is_not_applied_again(server: Server, cluster: Cluster) -> None:
    member = cluster.store()
    member.settled()
    wire = member.registry.core.wire

    def told(report: Report) -> bytes:
        call = wire.figures(report)
        assert isinstance(call, Call)

        def flow() -> Flow[bytes]:
            yield call.script.load()
            reply: bytes = yield call.request
            return reply

        return bytes(member.registry.driver.run(flow(), soon()))

    first, second = (Report(n, {"get.pages": 10}, GAUGES) for n in (1, 2))
    assert told(first) == b"K1"
    assert told(first) == b"K0"
    assert told(second) == b"K1"
    assert told(first) == b"K0"
    assert sums(server) == {"get.pages": 20}
    full = Report(3, {"get.pages": 1 << 53, "put.pages": 1}, GAUGES)
    with server.client() as client:
        client.hset(b"t" + TAG, "get.pages", (1 << 63) - 1)
    assert told(full) == b"K1"
    assert sums(server) == {"get.pages": (1 << 63) - 1, "put.pages": 1}


def test_a_reporter_sends_an_unanswered_report_again_as_it_was_and_the_rest_later() -> None:
    counts = Counts()
    reporter = Reporter(counts)
    counts.counters = {"get.pages": 3}
    sent = reporter.next()
    counts.counters = {"get.pages": 10, "put.pages": 1}
    assert reporter.next() is sent
    reporter.applied()
    following = reporter.next()
    assert following.counters == {"get.pages": 7, "put.pages": 1}
    assert following.number == sent.number + 1
    reporter.applied()
    assert reporter.next().counters == {}


def test_a_report_of_too_many_counters_is_told_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MAX_COUNTERS", 2)
    counts = Counts()
    counts.counters = {f"age.{n}": n + 1 for n in range(5)}
    reporter = Reporter(counts)
    told: dict[str, int] = {}
    for _ in range(3):
        part = reporter.next()
        assert len(part.counters) <= 2
        told.update(part.counters)
        reporter.applied()
    assert told == counts.counters


def test_reports_by_way_of_the_service_are_the_same(server: Server, service: Service) -> None:
    with Cluster(service.url) as members:
        member, counts = counting(members)
        counts.counters = {"op.3fs.get.40": 2, "tokens.l3": 1 << 40}
        eventually(lambda: sums(server) == {"op.3fs.get.40": 2, "tokens.l3": 1 << 40})
        found = record(server, member.member.process)
        assert found is not None
        assert found.gauges == GAUGES


def test_the_service_passes_over_counters_that_it_does_not_know_and_takes_the_others(
    server: Server, service: Service
) -> None:
    asked = {"namespace": namespace(), "process": "aa" * 16, "number": 1}
    with Cluster(service.url) as members:
        members.store().settled()
    assert post(service, "/v1/figures", {**asked, "counters": {"get.pages": 1}}) == (200, {})
    for counters in ({"get.pages": -1}, {"get.pages": 1.5}, {"x" * 65: 1}):
        status, _ = post(service, "/v1/figures", {**asked, "number": 2, "counters": counters})
        assert status == 422
    newer = {"refused.of_a_later_version": 3, "": 1, "get.pages": 2}
    assert post(service, "/v1/figures", {**asked, "number": 2, "counters": newer}) == (200, {})
    with server.client() as client:
        (key,) = client.keys("t*")
        assert client.hgetall(key) == {b"get.pages": b"3"}


def test_nothing_stays_of_reports_about_a_namespace_that_nobody_registered(
    server: Server, cluster: Cluster
) -> None:
    member = cluster.store(start=False)
    call = member.registry.core.wire.figures(Report(1, {"get.pages": 1}, GAUGES))

    def told() -> Flow[bytes]:
        return bytes((yield from answer(call)))

    with server.client() as client:
        client.flushall()
        assert member.registry.driver.run(told(), soon()) == b"L"
        assert client.keys("*") == []


def test_totals_and_records_read_back_what_was_reported(server: Server, cluster: Cluster) -> None:
    member, counts = counting(cluster)
    counts.counters = {"get.pages": 9, "age.3": 2}
    eventually(lambda: len(sums(server)) == 2)
    with server.client() as client:
        client.hset(b"t" + TAG, "of.a.later.version", 5)
    assert member.registry.driver.run(figures.totals(TAG), soon()) == counts.counters
    found = member.registry.driver.run(
        reports.records(TAG, [os.urandom(16), member.member.process]), soon()
    )
    assert {process: read.gauges for process, read in found.items()} == {
        member.member.process: GAUGES
    }


@pytest.mark.parametrize("packed", [b"", b"\x80", b"\xc1", b"\x91\x01", b"\x81\xa6number\xa1x"])
def test_a_record_that_makes_no_sense_is_none(packed: bytes) -> None:
    assert reports.unpacked(packed) is None


@given(st.floats(0, 1e9))
def test_a_latency_lies_in_its_bucket_and_not_in_the_one_before(us: float) -> None:
    n = figures.bucket(us)
    assert us <= figures.bound_us(n) * (1 + 1e-12) or n == figures.MOST_BUCKET
    assert n == 0 or us > figures.bound_us(n - 1) * (1 - 1e-12)


@given(st.floats(0, 1e9))
def test_an_age_lies_below_the_bound_of_its_bucket(seconds: float) -> None:
    n = figures.age_bucket(seconds)
    assert seconds < 2**n
    assert n == 0 or seconds >= 2 ** (n - 1)


@given(st.lists(st.floats(1, 1e8), min_size=1), st.floats(0, 1))
def test_a_quantile_is_at_most_a_bucket_above_the_true_one(took: list[float], q: float) -> None:
    counts: dict[int, int] = {}
    for us in took:
        counts[figures.bucket(us)] = counts.get(figures.bucket(us), 0) + 1
    rank = max(1, -(-q * len(took) // 1))
    true_us = sorted(took)[int(rank) - 1]
    found = figures.quantile(counts, q)
    assert found is not None
    assert true_us * (1 - 1e-12) <= found <= true_us * 2 ** (1 / 4) * (1 + 1e-12)


def test_there_is_no_quantile_of_nothing_and_sums_add_up() -> None:
    assert figures.quantile({}, 0.5) is None
    assert figures.summed([{"get.pages": 1}, {"get.pages": 2, "age.1": 3}]) == {
        "get.pages": 3,
        "age.1": 3,
    }
    assert figures.family({"miss.evicted": 4, "get.pages": 1}, "miss") == {"evicted": 4}
    assert figures.buckets({"age.3": 4, "age.x": 1}, "age") == {3: 4}


def test_the_vocabulary_is_bounded_and_its_names_are_plain() -> None:
    assert len(figures.names()) < 5000
    assert all(name.isascii() and len(name) <= 64 for name in figures.names())
    assert figures.valid("op.nvme.lookup.0")
    assert not figures.valid("op.nvme.lookup.109")
