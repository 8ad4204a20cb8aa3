"""Every page is counted once, with its reason, under names that never change."""

from __future__ import annotations

import logging
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, generate_latest

from hicache_backends.outcomes import HIT, Outcome, Reason, miss
from hicache_storage.metrics import SILENT_ZERO_AFTER, Metrics

GOLDEN = {
    "hicache_absent_total": {"backend", "tenant", "tier", "reason"},
    "hicache_bytes_read_total": {"backend", "tenant", "tier"},
    "hicache_bytes_written_total": {"backend", "tenant", "tier"},
    "hicache_call_seconds": {"backend", "tenant", "tier", "op"},
    "hicache_capacity_bytes": {"backend", "tenant", "tier"},
    "hicache_deduplicated_total": {"backend", "tenant", "tier"},
    "hicache_evict_total": {"backend", "tenant", "tier"},
    "hicache_found_total": {"backend", "tenant", "tier"},
    "hicache_hit_total": {"backend", "tenant", "tier"},
    "hicache_integrity_total": {"backend", "tenant", "tier", "kind"},
    "hicache_miss_total": {"backend", "tenant", "tier", "reason"},
    "hicache_pages_requested_total": {"backend", "tenant", "tier", "op"},
    "hicache_prefetch_ended_total": {"backend", "tenant", "tier", "fate"},
    "hicache_prefetch_total": {"backend", "tenant", "tier"},
    "hicache_refused_total": {"backend", "tenant", "tier", "reason"},
    "hicache_stored_bytes": {"backend", "tenant", "tier"},
    "hicache_stored_pages": {"backend", "tenant", "tier"},
    "hicache_stored_total": {"backend", "tenant", "tier"},
}
"""Names and labels that dashboards use: never change one, only add."""

STORED = Outcome(True, location=b"x" * 44)
EXISTED = Outcome(True, existed=True)
outcomes = st.lists(
    st.one_of(st.sampled_from([STORED, EXISTED]), st.sampled_from(Reason).map(miss)), max_size=40
)


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    base = {"backend": "nvme", "tenant": "t", "tier": "L3"}
    return registry.get_sample_value(name, {**base, **labels}) or 0.0


def test_names_and_labels_are_frozen(registry: CollectorRegistry) -> None:
    Metrics.create("nvme", "t", registry)
    found: dict[str, set[str]] = {}
    for family in registry.collect():
        for sample in family.samples:
            if sample.name.endswith(("_created", "_sum", "_count")):
                continue
            found.setdefault(sample.name.removesuffix("_bucket"), set()).update(sample.labels)
    found["hicache_call_seconds"].discard("le")
    assert found == GOLDEN


def test_labels_are_bounded(registry: CollectorRegistry) -> None:
    metrics = Metrics.create("nvme", "t", registry)
    before = generate_latest(registry).count(b"\n")
    for reason in Reason:
        metrics.observe("get", [miss(reason, f"page {time.time()}")], 0, 0.1)
        metrics.observe("set", [miss(reason, "another detail")], 0, 0.1)
    metrics.looked_up(1, 1, 0.1)
    for reason in Reason:
        metrics.looked_up(2, 1, 0.1, reason)
    metrics.count(("prefetch.used", 1), ("integrity.stale", 1))
    assert generate_latest(registry).count(b"\n") == before


@given(batches=st.lists(st.tuples(st.sampled_from(["get", "prefetch"]), outcomes), max_size=8))
def test_every_page_asked_for_is_a_hit_or_a_miss_with_its_reason(
    batches: list[tuple[str, list[Outcome]]],
) -> None:
    registry = CollectorRegistry()
    metrics = Metrics.create("nvme", "t", registry)
    for op, batch in batches:
        metrics.observe(op, batch, sum(o.ok for o in batch) * 10, 0.001)
    asked = sum(
        value(registry, "hicache_pages_requested_total", op=op) for op in ("get", "prefetch")
    )
    misses = sum(value(registry, "hicache_miss_total", reason=r.value) for r in Reason)
    hits = value(registry, "hicache_hit_total")
    assert asked == hits + misses == sum(len(batch) for _, batch in batches)
    assert value(registry, "hicache_bytes_read_total") == 10 * hits


@given(batch=outcomes)
def test_every_page_to_store_is_stored_deduplicated_or_refused(batch: list[Outcome]) -> None:
    registry = CollectorRegistry()
    metrics = Metrics.create("nvme", "t", registry)
    written = sum(o.ok and not o.existed for o in batch)
    metrics.observe("set", batch, written * 10, 0.001)
    refused = sum(value(registry, "hicache_refused_total", reason=r.value) for r in Reason)
    stored = value(registry, "hicache_stored_total")
    assert stored == written
    assert stored + value(registry, "hicache_deduplicated_total") + refused == len(batch)
    assert value(registry, "hicache_bytes_written_total") == 10 * written
    assert value(registry, "hicache_hit_total") == 0


def test_writes_that_fail_count_no_bytes(registry: CollectorRegistry) -> None:
    metrics = Metrics.create("nvme", "t", registry)
    metrics.observe("set", [miss(Reason.NO_SPACE)] * 3, 0, 0.1)
    assert value(registry, "hicache_bytes_written_total") == 0
    assert value(registry, "hicache_refused_total", reason="no_space") == 3


def test_asking_is_told_from_finding_and_from_reading(registry: CollectorRegistry) -> None:
    metrics = Metrics.create("nvme", "t", registry)
    metrics.looked_up(10, 4, 0.001)
    metrics.observe("get", [HIT, miss(Reason.EVICTED)], 8, 0.001)
    metrics.prefetch_started(5)
    metrics.evicted(2)
    assert metrics.snapshot() == {
        "found": 4,
        "hit": 1,
        "stored": 0,
        "deduplicated": 0,
        "evict": 2,
        "prefetch": 5,
        "bytes_read": 8,
        "bytes_written": 0,
        "requested": {"exists": 10, "get": 2},
        "miss": {"evicted": 1},
        "refused": {},
    }


def test_two_stores_of_a_process_share_the_families(registry: CollectorRegistry) -> None:
    first = Metrics.create("nvme", "a", registry)
    second = Metrics.create("nvme", "b", registry)
    again = Metrics.create("nvme", "a", registry)
    first.evicted(1)
    again.evicted(1)
    assert (first.snapshot()["evict"], second.snapshot()["evict"]) == (2, 0)
    assert Metrics.create("nvme", "a").snapshot()["evict"] == 0


def test_gauges_follow_the_store_until_it_is_closed(registry: CollectorRegistry) -> None:
    metrics = Metrics.create("nvme", "t", registry)
    stats: dict[str, int | float | str] = {"pages": 3, "bytes": 12288, "capacity_bytes": 1 << 20}
    metrics.watch(lambda: stats)
    assert value(registry, "hicache_stored_pages") == 3
    stats["pages"] = 4
    assert value(registry, "hicache_stored_pages") == 4
    assert value(registry, "hicache_capacity_bytes") == 1 << 20
    metrics.unwatch()
    assert value(registry, "hicache_stored_pages") == 0


def test_stored_but_never_found_warns_once(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics.create("nvme", "t", registry)
    with caplog.at_level(logging.WARNING):
        metrics.looked_up(SILENT_ZERO_AFTER, 0, 0.001)
        assert not caplog.records, "nothing is stored: nothing can be found"
        metrics.observe("set", [STORED], 10, 0.001)
        for _ in range(3):
            metrics.looked_up(SILENT_ZERO_AFTER, 0, 0.001)
        metrics.observe("get", [miss(Reason.NEVER_WRITTEN)] * SILENT_ZERO_AFTER, 0, 0.001)
    assert len(caplog.records) == 1
    assert "none of the last" in caplog.text


def test_who_watches_for_hits_otherwise_is_not_warned_twice(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics.create("nvme", "t", registry, warn_of_no_hits=False)
    metrics.observe("set", [STORED], 10, 0.001)
    metrics.looked_up(SILENT_ZERO_AFTER, 0, 0.001)
    assert not caplog.records


def test_a_store_that_has_hit_never_warns(
    registry: CollectorRegistry, caplog: pytest.LogCaptureFixture
) -> None:
    metrics = Metrics.create("nvme", "t", registry)
    metrics.observe("set", [STORED], 10, 0.001)
    metrics.observe("get", [HIT], 10, 0.001)
    with caplog.at_level(logging.WARNING):
        metrics.looked_up(10 * SILENT_ZERO_AFTER, 0, 0.001)
    assert not caplog.records


def test_a_batch_costs_increments_by_reason_not_by_page(
    registry: CollectorRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    metrics = Metrics.create("nvme", "t", registry)
    increments: list[float] = []
    real = Counter.inc

    def counted(counter: Counter, amount: float = 1) -> None:
        increments.append(amount)
        real(counter, amount)

    monkeypatch.setattr(Counter, "inc", counted)
    metrics.observe("get", [HIT, miss(Reason.EVICTED), miss(Reason.TIMEOUT), HIT] * 250, 5, 0.001)
    assert sorted(increments) == [5, 250, 250, 500, 1000]
