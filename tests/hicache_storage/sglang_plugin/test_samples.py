"""Figures for SGLang's own metrics: its own type or None, each once, bounded, from any thread."""

from __future__ import annotations

import sys
import threading
import types
from dataclasses import dataclass, field

import pytest

from hicache_storage.sglang.samples import Samples

NEW, OLD = "sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector"


@dataclass
class StorageMetrics:
    """Stands in for SGLang's type of this name, which has these fields in every release."""

    prefetch_pgs: list[int] = field(default_factory=list)
    backup_pgs: list[int] = field(default_factory=list)
    prefetch_bandwidth: list[float] = field(default_factory=list)
    backup_bandwidth: list[float] = field(default_factory=list)


def place(patch: pytest.MonkeyPatch, at: str | None) -> None:
    """An SGLang that has its type there, or nowhere."""
    for name in (NEW, OLD):
        patch.setitem(sys.modules, name, None)
        parts = name.split(".")
        for depth in range(1, len(parts)):
            parent = ".".join(parts[:depth])
            patch.setitem(sys.modules, parent, types.ModuleType(parent))
    if at is not None:
        module = types.ModuleType(at)
        vars(module)["StorageMetrics"] = StorageMetrics
        patch.setitem(sys.modules, at, module)


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> Samples:
    place(monkeypatch, NEW)
    return Samples(True)


@pytest.mark.parametrize("at", [NEW, OLD])
def test_what_was_moved_comes_once_in_sglangs_own_type(
    monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    place(monkeypatch, at)
    samples = Samples(True)
    assert samples.collect() is None, "nothing yet"
    samples.prefetched(3, 3_000_000_000, 1.5)
    samples.backed_up(2, 500_000_000, 1.0)
    samples.prefetched(1, 1_000_000_000, 1.0)
    assert samples.collect() == StorageMetrics([3, 1], [2], [2.0, 1.0], [0.5])
    assert samples.collect() is None


def test_nothing_moved_is_no_sample(samples: Samples) -> None:
    samples.prefetched(0, 0, 1.0)
    samples.backed_up(0, 0, 0.0)
    assert samples.collect() is None
    samples.backed_up(1, 1_000, 0.0)
    assert samples.collect().backup_pgs == [1], "however short it took"


@pytest.mark.parametrize(("wanted", "at"), [(False, NEW), (True, None)])
def test_where_sglang_does_not_collect_nothing_is_kept(
    monkeypatch: pytest.MonkeyPatch, wanted: bool, at: str | None
) -> None:
    place(monkeypatch, at)
    samples = Samples(wanted)
    samples.prefetched(1, 1, 1.0)
    assert samples.collect() is None
    assert not any(samples._kept.values())


def test_what_nobody_collects_is_bounded(samples: Samples) -> None:
    for _ in range(5000):
        samples.prefetched(1, 1, 1.0)
        samples.backed_up(1, 1, 1.0)
    found = samples.collect()
    assert len(found.prefetch_pgs) == len(found.prefetch_bandwidth) == 1024
    assert len(found.backup_pgs) == len(found.backup_bandwidth) == 1024
    samples.prefetched(7, 1, 1.0)
    assert samples.collect().prefetch_pgs == [7], "and starts anew"


def test_no_sample_is_lost_or_told_twice_between_threads(samples: Samples) -> None:
    done, told = threading.Event(), []

    def collect() -> None:
        while not done.is_set():
            if (found := samples.collect()) is not None:
                assert len(found.prefetch_pgs) == len(found.prefetch_bandwidth)
                told.extend(found.prefetch_pgs)

    def move(first: int) -> None:
        for n in range(first, first + 200):
            samples.prefetched(n, n, 1.0)

    collector = threading.Thread(target=collect)
    movers = [threading.Thread(target=move, args=(1 + 200 * n,)) for n in range(4)]
    for thread in (collector, *movers):
        thread.start()
    for thread in movers:
        thread.join()
    done.set()
    collector.join()
    if (rest := samples.collect()) is not None:
        told += rest.prefetch_pgs
    assert sorted(told) == list(range(1, 801))
