"""The overview as a function of what was looked at: shares have denominators, unknown is None."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from hicache_backends.identity import Namespace
from kvmanager import keys
from kvmanager.control.census import LOADED_TOKENS, ClaimCount, Look
from kvmanager.control.checks import FsckResult
from kvmanager.control.history import Sample
from kvmanager.control.namespaces import MediumRecord, NamespaceRecord, StoreRecord
from kvmanager.control.overview import DAY_S, Asked, compose
from kvmanager.control.overview_model import Overview
from kvmanager.control.popularity import Prefix
from kvmanager.control.tenant_view import TenantView
from kvmanager.reports import Gauges, Record, StoreGauges

NOW_S = 1_000_000.0
GIB = 1 << 30
NAMESPACE = Namespace("model", "revision", "bf16", "page_first", 64, 1 << 20)
TAG = keys.tag(NAMESPACE.fingerprint)


def _store(n: int, *, alive: bool = True) -> StoreRecord:
    return StoreRecord(
        bytes([n]) * 16,
        bytes([100 + n]) * 16,
        b"medium..",
        b"m" * 16,
        0,
        999_990,
        alive,
        host=f"h{n}",
    )


def _look(
    sums: Mapping[str, int] | None = None,
    *,
    pages: int = 1024,
    stores: Sequence[StoreRecord] = (),
    records: Mapping[bytes, Gauges] | None = None,
    claims: ClaimCount | None = None,
    fsck: FsckResult | None = None,
    namespace: Namespace = NAMESPACE,
) -> Look:
    medium = MediumRecord(b"medium..", b"m" * 16, True, 999_990, pages)
    record = NamespaceRecord(
        keys.tag(namespace.fingerprint), namespace, 0, (medium,), len(stores), 0, 999_990
    )
    found = {process: Record(1, gauges) for process, gauges in (records or {}).items()}
    return Look(record, sums or {}, list(stores), found, claims or ClaimCount(), fsck)


def _overview(*views: TenantView, window_s: int = 3600) -> Overview:
    return compose(views, Asked(None, [view.name for view in views], window_s, NOW_S))


def _of(sums: Mapping[str, int], before: Mapping[str, int] | None = None) -> Overview:
    samples = [] if before is None else [Sample(NOW_S - 3600, before)]
    return _overview(TenantView("t", [_look(sums)], samples=samples))


def test_counts_are_those_of_the_window_and_its_length_is_told() -> None:
    found = _of({"get.pages": 100, "get.hits": 80}, {"get.pages": 60, "get.hits": 50})
    assert (found.pages.asked, found.pages.hits) == (40, 30)
    assert found.covered_s == 3600


def test_counts_of_a_tenant_younger_than_the_window_are_those_since_the_beginning() -> None:
    look = _look({"get.pages": 100})
    samples = [Sample(NOW_S - 60, {"get.pages": 90})]
    for view in (TenantView("t", [look]), TenantView("t", [look], samples=samples)):
        found = _overview(view)
        assert (found.pages.asked, found.covered_s) == (100, None)
    old = TenantView("o", [look], samples=[Sample(NOW_S - 3600, {"get.pages": 30})])
    both = _overview(old, TenantView("t", [look], samples=samples))
    assert (both.pages.asked, both.covered_s) == (170, 3600)


def test_what_nobody_reported_is_unknown_and_what_nobody_did_is_0() -> None:
    silent = _overview(TenantView("t", [_look()]))
    assert (silent.pages.asked, silent.moved.read_bytes, silent.stored.asked) == (None, None, None)
    assert (silent.integrity.checksum, silent.prefetch.pages) == (None, None)
    idle = _overview(TenantView("t", [_look(stores=[_store(1)], records={b"p" * 16: Gauges()})]))
    assert (idle.pages.asked, idle.moved.read_bytes, idle.stored.asked) == (0, 0, 0)
    assert idle.served.total is None  # no engine has told


def test_sources_that_an_engine_does_not_tell_stay_unknown() -> None:
    served = _of({"tokens.l3": 30, "tokens.recomputed": 70}).served
    assert (served.l1, served.l2, served.l3, served.recomputed) == (None, None, 30, 70)
    assert served.total == 100
    assert _of({"tokens.recomputed": 70}).served.l3 == 0


def test_loading_is_set_against_computing() -> None:
    sums = {"load.us": 2_000_000, LOADED_TOKENS: 100_000, "get.hits": 1}
    sums |= {"prefill.us": 10_000_000, "prefill.tokens": 100_000, "op.nvme.exists.40": 10}
    worth = _of(sums).worth
    assert worth.load_s == 2.0
    assert worth.saved_s == pytest.approx(10.0)
    assert worth.ask_s == pytest.approx(0.001024)
    assert worth.break_even_tokens == 13  # 1.024 ms at 80 us a token
    assert not worth.never


def test_loading_that_is_slower_than_computing_never_breaks_even() -> None:
    sums = {"load.us": 9_000_000, LOADED_TOKENS: 1000, "prefill.us": 1_000_000}
    worth = _of({**sums, "prefill.tokens": 1000, "op.nvme.exists.40": 10}).worth
    assert (worth.never, worth.break_even_tokens) == (True, None)


def test_without_prefill_times_the_configured_speed_is_taken_and_else_it_is_unknown() -> None:
    sums = {"load.us": 1_000_000, LOADED_TOKENS: 10_000}
    assert _of(sums).worth.saved_s is None
    told = {b"p" * 16: Gauges(prefill_tokens_per_s=1000.0)}
    worth = _overview(TenantView("t", [_look(sums, records=told)])).worth
    assert (worth.saved_s, worth.prefill_s) == (10.0, None)


def test_latency_has_quantiles_and_late_calls_by_operation_and_medium() -> None:
    sums = {"op.3fs.get.40": 98, "op.3fs.get.60": 2, "late.3fs.get": 1, "late.nvme.put": 3}
    get, put = _of(sums).latency
    assert (get.kind, get.operation, get.calls, get.late) == ("3fs", "get", 100, 1)
    assert get.p50_s == pytest.approx(0.001024)
    assert get.p99_s == pytest.approx(0.032768)
    assert (put.operation, put.calls, put.p50_s, put.late) == ("put", 0, None, 3)


def test_days_to_full_are_taken_from_the_last_day() -> None:
    look = _look(pages=10 * 1024)  # 10 GiB
    day = [Sample(NOW_S - DAY_S / 2, bytes=8 * GIB)]
    (space,) = _overview(TenantView("t", [look], 30 * GIB, day=day)).space
    assert (space.used_bytes, space.quota_bytes) == (10 * GIB, 30 * GIB)
    assert space.grows_bytes_per_day == 4 * GIB
    assert space.days_to_full == 5
    assert _overview(TenantView("t", [look], day=day)).space[0].days_to_full is None
    assert _overview(TenantView("t", [look], 9 * GIB)).space[0].days_to_full == 0
    young = [replace(day[0], time_s=NOW_S - 60)]
    unknown = _overview(TenantView("t", [look], 30 * GIB, day=young)).space[0]
    assert (unknown.grows_bytes_per_day, unknown.days_to_full) == (None, None)
    shrunk = [replace(day[0], bytes=20 * GIB)]
    assert _overview(TenantView("t", [look], 30 * GIB, day=shrunk)).space[0].days_to_full is None


def test_what_vanished_stores_left_is_told_apart() -> None:
    live, gone, silent = _store(1), _store(2, alive=False), _store(3)
    told = {live.process: Gauges(stores=(StoreGauges(live.store, 300, 300 << 20),))}
    (space,) = _overview(TenantView("t", [_look(stores=[live, gone], records=told)])).space
    assert (space.used_bytes, space.orphan_bytes) == (1024 << 20, 724 << 20)
    assert _overview(TenantView("t", [_look(stores=[gone])])).space[0].orphan_bytes == 1024 << 20
    unknown = _overview(TenantView("t", [_look(stores=[live, silent], records=told)])).space[0]
    assert unknown.orphan_bytes == 0  # all of it may be the silent one's


def test_processes_in_trouble_come_first_and_a_silent_one_is_unknown() -> None:
    stores = [_store(1), _store(2), _store(3), _store(4, alive=False)]
    own = StoreGauges(stores[2].store, 5, 500, 5000)
    records = {
        stores[1].process: Gauges(breaker="down"),
        stores[2].process: Gauges(hung=True, pages=9, stores=(own,)),
    }
    live = _overview(TenantView("t", [_look(stores=stores, records=records)])).liveness
    assert (live.known, live.alive, live.reported, live.hung) == (4, 3, 2, 1)
    assert live.gone_lately == 1
    assert live.breakers == {"down": 1, "up": 1}
    assert [process.host for process in live.processes] == ["h2", "h3", "h1", "h4"]
    assert (live.processes[1].pages, live.processes[1].bytes) == (5, 500)
    assert (live.processes[2].breaker, live.processes[2].hung) == (None, None)


def test_checks_that_found_something_come_first_and_those_never_made_are_counted() -> None:
    other = replace(NAMESPACE, model="other")
    clean = FsckResult(NOW_S, True, {}, 0)
    dirty = FsckResult(NOW_S - 10, False, {"missing_page": 2}, 1)
    looks = [_look(fsck=clean), _look(fsck=dirty, namespace=other), _look({"integrity.stale": 3})]
    integrity = _overview(TenantView("t", looks)).integrity
    assert (integrity.checked, integrity.namespaces) == (2, 3)
    assert [check.clean for check in integrity.fsck] == [False, True]
    assert integrity.fsck[0].found == {"missing_page": 2}
    assert (integrity.stale, integrity.checksum) == (3, 0)


def test_prefixes_of_namespaces_that_are_gone_are_left_out() -> None:
    gone = Prefix(keys.tag(bytes(32)), b"d" * 16, 9, 1)
    here = Prefix(TAG, b"e" * 16, 3.456, None)
    (hottest,) = _overview(TenantView("t", [_look()], hottest=[gone, here])).hottest
    assert (hottest.digest, hottest.loads, hottest.pages) == ("65" * 16, 3.46, None)


def test_a_curve_has_what_happened_between_samples_of_all_tenants() -> None:
    def view(name: str, late_s: float) -> TenantView:
        samples = [
            Sample(NOW_S - 120 + 60 * n + late_s, {"get.bytes": 100 * n, "tokens.l3": n}, bytes=n)
            for n in range(2)
        ]
        namespace = replace(NAMESPACE, tenant=name)
        look = _look({"get.bytes": 300, "tokens.l3": 2}, pages=0, namespace=namespace)
        return TenantView(name, [look], samples=samples)

    first, second = _overview(view("a", 0.0), view("b", 0.01), window_s=120).curve
    assert (first.from_s, first.to_s, second.to_s) == (NOW_S - 120, NOW_S - 60, NOW_S)
    assert (first.read_bytes, second.read_bytes) == (200, 400)
    assert (first.tokens["l3"], first.tokens["l1"], first.used_bytes) == (2, None, 2)


def test_the_last_moments_are_no_point_of_the_curve() -> None:
    samples = [Sample(NOW_S - 65, {}), Sample(NOW_S - 5, {"get.pages": 9})]
    view = TenantView("t", [_look({"get.pages": 9})], samples=samples)
    assert [span.to_s for span in _overview(view).curve] == [NOW_S - 5]


def test_reasons_are_in_the_order_of_their_counts() -> None:
    found = _of({"miss.evicted": 3, "miss.timeout": 9, "get.pages": 20, "refused.no_space": 1})
    assert list(found.pages.misses.items()) == [("timeout", 9), ("evicted", 3)]
    assert found.stored.refused == {"no_space": 1}


def test_claims_and_ages_are_added_up() -> None:
    looks = [
        _look({"age.3": 3, "age.10": 1}, claims=ClaimCount(2, 1, whole=True)),
        _look({"age.3": 1}, claims=ClaimCount(1, 4, whole=False)),
    ]
    found = _overview(TenantView("t", looks))
    assert (found.claims.held, found.claims.orphans, found.claims.whole) == (3, 5, False)
    assert (found.ages.pages, found.ages.p50_s, found.ages.buckets) == (5, 8, [(8, 4), (1024, 1)])
