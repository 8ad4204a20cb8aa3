"""Figures that SGLang collects by `get_stats`, for its own metrics."""

from __future__ import annotations

import importlib
import threading
from typing import Any

_PLACES = ("sglang.srt.observability.metrics_collector", "sglang.srt.metrics.collector")
_MOST = 1024
"""Kept while nobody collects them."""


class Samples:
    """Pages and bandwidth of each transfer since they were last collected. Thread safe.

    Nothing is kept unless `wanted`: SGLang collects them only with its metrics on.
    """

    def __init__(self, wanted: bool) -> None:
        self._metrics_class = _metrics_class() if wanted else None
        self._lock = threading.Lock()
        self._kept: dict[str, list[tuple[int, float]]] = {"prefetch": [], "backup": []}

    def prefetched(self, pages: int, moved_bytes: int, seconds: float) -> None:
        """One read."""
        self._add("prefetch", pages, moved_bytes, seconds)

    def backed_up(self, pages: int, moved_bytes: int, seconds: float) -> None:
        """One write."""
        self._add("backup", pages, moved_bytes, seconds)

    def collect(self) -> Any:
        """SGLang's own type with all there is, then forgotten; None if there is nothing: it asks
        thousands of times a second."""
        if self._metrics_class is None or not any(self._kept.values()):
            return None
        with self._lock:
            kept, self._kept = self._kept, {"prefetch": [], "backup": []}
        fields = {f"{way}_pgs": [pages for pages, _ in of_way] for way, of_way in kept.items()}
        rates = {f"{way}_bandwidth": [r for _, r in of_way] for way, of_way in kept.items()}
        return self._metrics_class(**fields, **rates)

    def _add(self, way: str, pages: int, moved_bytes: int, seconds: float) -> None:
        if self._metrics_class is None or not pages:
            return
        with self._lock:
            kept = self._kept[way]
            if len(kept) < _MOST:
                kept.append((pages, moved_bytes / max(seconds, 1e-9) / 1e9))


def _metrics_class() -> Any:
    for place in _PLACES:
        try:
            return importlib.import_module(place).StorageMetrics
        except (ImportError, AttributeError):
            continue
    return None
