"""What a page store tells the registry of itself every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from hicache_backends.storage import PageStorage
from hicache_backends.version import installed_version
from hicache_storage.tally import Tally
from kvmanager import figures
from kvmanager.registry import Registry
from kvmanager.reports import MAX_STORES, Gauges, StoreGauges, Totals

EngineFigures = Callable[[], Mapping[str, int]]
"""Counters that the engine keeps, since its start; called every few seconds by one thread."""


class Reporting:
    """The source of a store's reports: an object to call."""

    def __init__(
        self,
        tally: Tally,
        storage: PageStorage,
        registry: Registry,
        mode: Callable[[], str],
        page_bytes: int,
    ) -> None:
        self._tally = tally
        self._storage = storage
        self._registry = registry
        self._mode = mode
        self._page_bytes = page_bytes
        self._started_s = int(time.time())
        self.engine: EngineFigures = dict
        self.prefill_tokens_per_s = 0.0

    def __call__(self) -> Totals:
        parts = (self._tally.counters(), self._storage.counters(), self.engine())
        known = {name: n for name, n in figures.summed(parts).items() if figures.valid(name)}
        return Totals(known, self._gauges())

    def _gauges(self) -> Gauges:
        stats, held = self._storage.stats(), self._storage.pages_by_store()
        pages = sum(held.values()) if held else int(stats.get("pages", 0))
        capacity_bytes = int(stats.get("capacity_bytes", 0))
        return Gauges(
            kind=self._tally.kind,
            mode=self._mode(),
            breaker=self._registry.state.value,
            hung=bool(stats.get("hung")),
            version=installed_version(),
            started_s=self._started_s,
            pages=pages,
            bytes=pages * self._page_bytes,
            capacity_bytes=capacity_bytes,
            prefill_tokens_per_s=self.prefill_tokens_per_s,
            stores=self._stores(held, capacity_bytes),
            hot=self._tally.hot(),
        )

    def _stores(self, held: dict[bytes, int], capacity_bytes: int) -> tuple[StoreGauges, ...]:
        """Where there are several, they share the capacity alike."""
        share = capacity_bytes // max(1, len(held))
        some = list(held.items())[:MAX_STORES]
        return tuple(StoreGauges(s, n, n * self._page_bytes, share) for s, n in some)
