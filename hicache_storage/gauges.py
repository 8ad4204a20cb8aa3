"""Gauges of the stores that this process has open: those with equal labels are added up.

A scrape reads them from the stores. In Prometheus's multiprocess mode, SGLang's with
`--enable-metrics`, another process answers it from files, so that they are written every few
seconds as well.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from weakref import WeakKeyDictionary

import prometheus_client as prometheus
from prometheus_client import CollectorRegistry, values

Stats = Callable[[], Mapping[str, int | float | str]]
Labels = tuple[str, ...]

_log = logging.getLogger(__name__)
REFRESH_S = 5.0
Mode = Literal["livesum", "livemax"]
# by the key of `PageStorage.stats`; processes share a medium, not their stores
_GAUGES: Mapping[str, tuple[str, str, Mode]] = {
    "pages": ("hicache_stored_pages", "Pages in the own index.", "livesum"),
    "bytes": ("hicache_stored_bytes", "Bytes of the pages in the own index.", "livesum"),
    "capacity_bytes": ("hicache_capacity_bytes", "Bytes that may be kept.", "livemax"),
}
_made: WeakKeyDictionary[CollectorRegistry, Gauges] = WeakKeyDictionary()
_made_lock = threading.Lock()


@dataclass(eq=False)
class _Store:
    labels: Labels
    stats: Stats
    medium: Hashable  # stores of one medium share its capacity
    told: Mapping[str, int | float | str] = field(default_factory=dict)

    def figures(self) -> Mapping[str, int | float | str]:
        """Its stats; what it last told where it fails to, which ends nobody's scrape."""
        try:
            self.told = self.stats()
        except Exception as error:
            _log.debug("a store's stats failed: %s", error)
        return self.told


class Gauges:
    """The gauges in one registry of metrics. Thread safe. Get them by `of`."""

    def __init__(self, registry: CollectorRegistry, label_names: Labels) -> None:
        self._families = {
            key: prometheus.Gauge(
                name, text, label_names, registry=registry, multiprocess_mode=mode
            )
            for key, (name, text, mode) in _GAUGES.items()
        }
        self._stores: list[_Store] = []
        self._lock = threading.Lock()
        self._over: threading.Event | None = None  # of the thread that writes

    @classmethod
    def of(cls, registry: CollectorRegistry, label_names: Labels) -> Gauges:
        """Those of a registry, made once."""
        with _made_lock:
            if registry not in _made:
                _made[registry] = cls(registry, label_names)
            return _made[registry]

    def show(self, labels: Labels) -> None:
        """Have gauges with these labels, 0 while no store is open."""
        for key, family in self._families.items():
            family.labels(*labels).set_function(functools.partial(self._value, labels, key))

    def add(self, labels: Labels, stats: Stats, media: Sequence[bytes] = ()) -> Callable[[], None]:
        """Count a store; returns what ends that. `media`: where its pages lie, empty for memory of
        its own. `stats` is called by other threads."""
        store = _Store(labels, stats, frozenset(media) or object())
        with self._lock:
            self._stores.append(store)
        self.show(labels)
        if getattr(values.ValueClass, "_multiprocess", False):
            self._write(labels)
            self._write_on()
        return functools.partial(self._remove, store)

    def _remove(self, store: _Store) -> None:
        with self._lock:
            self._stores.remove(store)
            last = not self._counted(store.labels)
            if not self._stores and self._over is not None:
                self._over.set()
                self._over = None
        if last:  # otherwise the next writing shows it: a medium that hangs must not hold this up
            self._write(store.labels)

    def _counted(self, labels: Labels) -> list[_Store]:
        return [store for store in self._stores if store.labels == labels]

    def _value(self, labels: Labels, key: str) -> float:
        with self._lock:
            stores = self._counted(labels)
        return _totals(stores)[key]

    def _write(self, labels: Labels) -> None:
        with self._lock:
            stores = self._counted(labels)
        totals = _totals(stores)  # without the lock: a medium may hang
        with self._lock:
            if stores == self._counted(labels):  # else the next time
                for key, total in totals.items():
                    self._families[key].labels(*labels).set(total)

    def _write_on(self) -> None:
        """Write regularly from now on: another process answers the scrapes."""
        with self._lock:
            if self._over is not None or not self._stores:
                return
            self._over = over = threading.Event()
        threading.Thread(
            target=self._keep_writing, args=(over,), name="hicache-gauges", daemon=True
        ).start()

    def _keep_writing(self, over: threading.Event) -> None:
        while not over.wait(REFRESH_S):
            with self._lock:
                open_now = {store.labels for store in self._stores}
            for labels in open_now:
                try:
                    self._write(labels)
                except Exception as error:  # of the files, which may be writable the next time
                    _log.debug("the gauges could not be written: %s", error)


def _totals(stores: Sequence[_Store]) -> dict[str, float]:
    totals, media = dict.fromkeys(_GAUGES, 0.0), set()
    for store in stores:
        figures = store.figures()
        totals["pages"] += float(figures.get("pages", 0))
        totals["bytes"] += float(figures.get("bytes", 0))
        if store.medium not in media:
            totals["capacity_bytes"] += float(figures.get("capacity_bytes", 0))
        media.add(store.medium)
    return totals
