"""The parts of the overview that need more than a few lines: latencies, worth, processes."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence

from kvmanager import figures
from kvmanager.control import overview_model as m
from kvmanager.control.census import LOADED_TOKENS, Look
from kvmanager.control.namespaces import StoreRecord

MAX_PROCESSES = 200
LATELY_S = 3600.0


def latencies(window: Mapping[str, int]) -> list[m.Latency]:
    """Of each kind of medium and operation that was called, the most called first."""
    late = figures.family(window, "late")
    names = {name.rpartition(".")[0] for name in figures.family(window, "op")} | {*late}
    found = []
    for name in names:
        counts = {n: c for n, c in figures.buckets(window, f"op.{name}").items() if c > 0}
        if not counts and not late.get(name):
            continue
        kind, _, operation = name.rpartition(".")
        found.append(
            m.Latency(
                kind,
                operation,
                sum(counts.values()),
                late.get(name, 0),
                _seconds(figures.quantile(counts, 0.5)),
                _seconds(figures.quantile(counts, 0.99)),
                [(figures.bound_us(n) / 1e6, c) for n, c in sorted(counts.items())],
            )
        )
    return sorted(found, key=lambda one: (-one.calls, one.kind, one.operation))


def worth(window: Mapping[str, int], ever: Mapping[str, int], looks: Sequence[Look]) -> m.Worth:
    """Loading against computing again."""
    load_s = window.get("load.us", 0) / 1e6 if "load.us" in ever else None
    loaded = window.get(LOADED_TOKENS, 0) if LOADED_TOKENS in ever else None
    prefill_s, prefill_tokens = None, None
    if "prefill.us" in ever and "prefill.tokens" in ever:
        prefill_s = window.get("prefill.us", 0) / 1e6
        prefill_tokens = window.get("prefill.tokens", 0)
    compute_s = _compute_s(prefill_s, prefill_tokens, looks)
    a_load_s = load_s / loaded if load_s is not None and loaded else None
    ask_s = _ask_s(window)
    even, never = None, False
    if compute_s is not None and a_load_s is not None:
        never = a_load_s >= compute_s
        if not never and ask_s is not None:
            even = round(ask_s / (compute_s - a_load_s))
    saved_s = None if compute_s is None or loaded is None else compute_s * loaded
    return m.Worth(load_s, loaded, prefill_s, prefill_tokens, saved_s, ask_s, even, never)


def liveness(looks: Sequence[Look], now_s: float) -> m.Liveness:
    """All processes, those in trouble first, those that went long ago last."""
    stores = [(look, store) for look in looks for store in look.stores if not store.unattended]
    processes = [_process(look, store) for look, store in stores]
    processes.sort(key=lambda process: _place(process, now_s))
    living = [process for process in processes if process.alive]
    reported = [process for process in living if process.breaker is not None]
    return m.Liveness(
        len(processes),
        len(living),
        sum(_went_lately(process, now_s) for process in processes),
        len(reported),
        dict(Counter(process.breaker for process in reported if process.breaker)),
        sum(bool(process.hung) for process in reported),
        processes[:MAX_PROCESSES],
    )


def _process(look: Look, store: StoreRecord) -> m.Process:
    record = look.records.get(store.process)
    gauges = record.gauges if record is not None else None
    own = next((g for g in gauges.stores if g.store == store.store), gauges) if gauges else None
    return m.Process(
        store.process.hex(),
        look.record.id,
        look.record.tenant,
        look.record.namespace.model,
        store.host,
        store.server,
        store.rank,
        store.alive,
        float(store.seen_s),
        gauges.kind if gauges else None,
        store.mode or (gauges.mode if gauges else None),
        gauges.breaker if gauges else None,
        gauges.hung if gauges else None,
        gauges.version if gauges else None,
        own.pages if own else None,
        own.bytes if own else None,
        own.capacity_bytes if own else None,
    )


def _went_lately(process: m.Process, now_s: float) -> bool:
    return not process.alive and now_s - process.seen_s < LATELY_S


def _place(process: m.Process, now_s: float) -> tuple[int, str, str, int]:
    """Where a process stands in the list."""
    if not process.alive:
        trouble = 3 if _went_lately(process, now_s) else 5
    elif process.hung or process.breaker == "down":
        trouble = 0
    elif process.breaker == "rebuilding":
        trouble = 1
    else:
        trouble = 2 if process.breaker is None else 4
    return trouble, process.host, process.server, process.rank


def _compute_s(
    prefill_s: float | None, prefill_tokens: int | None, looks: Sequence[Look]
) -> float | None:
    """Seconds that computing a token takes: as measured, else as processes are configured."""
    if prefill_s is not None and prefill_tokens:
        return prefill_s / prefill_tokens
    rates = [
        record.gauges.prefill_tokens_per_s
        for look in looks
        for record in look.records.values()
        if record.gauges.prefill_tokens_per_s > 0
    ]
    return 1 / statistics.median(rates) if rates else None


def _ask_s(window: Mapping[str, int]) -> float | None:
    """The median of asking whether pages are there: what a load costs however short it is."""
    for operation in ("exists", "lookup"):
        counts: Counter[int] = Counter()
        for kind in figures.KINDS:
            counts.update(figures.buckets(window, f"op.{kind}.{operation}"))
        median_us = figures.quantile(counts, 0.5)
        if median_us is not None:
            return median_us / 1e6
    return None


def _seconds(us: float | None) -> float | None:
    return None if us is None else us / 1e6
