"""Metrics made of sums: names that dashboards rely on, labels that stay few."""

from __future__ import annotations

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from hicache_backends.identity import Namespace
from kvmanager import keys
from kvmanager.control.census import LOADED_TOKENS, ClaimCount, Look
from kvmanager.control.namespaces import NamespaceRecord
from kvmanager.service.control.census import Seen
from kvmanager.service.metrics import exposition_of
from kvmanager.service.sums import MAX_TENANTS, OTHER, Sums, TenantLabels

NAMESPACE = Namespace("model", "revision", "bf16", "page_first", 64, 4096)
NAMES = {
    *(
        "absent_pages_total",
        "asked_pages_total",
        "breakers",
        "claims",
        "evicted_age_seconds_bucket",
    ),
    *("evicted_pages_total", "existing_pages_total", "exists_pages_total", "found_pages_total"),
    *("fsck_age_seconds", "history_lag_seconds", "hit_pages_total", "hung_processes"),
    *("late_calls_total", "load_seconds_total", "loaded_tokens_total", "missed_pages_total"),
    *("namespaces", "operation_seconds_bucket", "pages", "prefetch_pages_total"),
    *("prefetched_pages_total", "prefill_seconds_total", "prefill_tokens_total", "processes"),
    *("orphan_bytes", "put_pages_total", "quota_bytes", "read_bytes_total", "refused_pages_total"),
    *("reporting_processes", "stored_pages_total", "tokens_total", "unchecked_namespaces"),
    *("unclean_namespaces", "used_bytes", "written_bytes_total", "wrong_pages_total"),
}
"""Never rename one: panels and alerts elsewhere would fall silent."""


def _look(tenant: str, **sums: int) -> Look:
    namespace = replace(NAMESPACE, tenant=tenant)
    record = NamespaceRecord(keys.tag(namespace.fingerprint), namespace, 0, (), 0, 0, 0)
    counters = {name.replace("_", "."): n for name, n in sums.items()}
    return Look(record, counters, [], {}, ClaimCount(), None)


def _samples(seen: Seen, labels: dict[str, str]) -> dict[str, dict[tuple[str, ...], float]]:
    text = exposition_of(Sums.of(seen, labels)).decode()
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values = tuple(sample.labels[name] for name in sorted(sample.labels))
            found.setdefault(sample.name, {})[values] = sample.value
    return found


def test_the_names_are_those_that_they_were() -> None:
    from kvmanager import figures
    from kvmanager.control.checks import FsckResult

    full = dict.fromkeys([*figures.names(), LOADED_TOKENS], 1)
    look = replace(_look("t"), sums=full, fsck=FsckResult(0, True, {}, 0))
    samples = _samples(Seen(1.0, {"t": [look]}, {"t": 1}, {"t": 1.0}), {"t": "t"})
    assert samples.keys() == {f"kvmanager_{name}" for name in NAMES}


def test_a_tenant_too_many_is_one_of_the_others() -> None:
    labels = TenantLabels()
    names = [f"t{n:03}" for n in range(MAX_TENANTS + 6)]
    looks = {name: [_look(name, get_pages=2)] for name in names}
    asked = _samples(Seen(1.0, looks), labels.of(names))["kvmanager_asked_pages_total"]
    assert len(asked) == MAX_TENANTS + 1
    assert asked[OTHER,] == 12


def test_a_tenant_keeps_its_label_while_others_come_and_go() -> None:
    labels = TenantLabels()
    first = [f"t{n:03}" for n in range(MAX_TENANTS)]
    labels.of(first)
    with_new = labels.of(["a", *first])
    assert (with_new["a"], with_new["t063"]) == (OTHER, "t063")
    assert labels.of(["a", *first[1:]])["a"] == "a"  # a place became free


def test_latencies_are_cumulative_and_lose_no_call() -> None:
    look = replace(_look("t"), sums={"op.nvme.get.0": 3, "op.nvme.get.41": 2, "op.nvme.get.108": 1})
    buckets = _samples(Seen(1.0, {"t": [look]}), {"t": "t"})["kvmanager_operation_seconds_bucket"]
    by_bound = {float(bound): n for (_, bound, _), n in buckets.items()}
    assert by_bound[16e-6] == 3
    assert by_bound[0.001024] == 3
    assert by_bound[0.002048] == 5  # 41 quarter octaves are more than 1,024 us
    assert by_bound[float("inf")] == 6
    assert [*by_bound.values()] == sorted(by_bound.values())
