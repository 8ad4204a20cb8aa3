"""What the service counts, for Prometheus, and what it last saw of the registry (`sums`)."""

from __future__ import annotations

from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

CONTENT_TYPE = CONTENT_TYPE_LATEST
_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5, 1.0, 5.0)
_CLASSES = ("1xx", "2xx", "3xx", "4xx", "5xx")

Watch = Callable[[int, float], None]
"""Told the status of an answer and the seconds it took."""


class Metrics:
    """The counters of one service."""

    def __init__(self, down: Callable[[], bool]) -> None:
        """`down`: whether Redis is."""
        self.own = CollectorRegistry()
        self._requests = Counter(
            "kvmanager_requests_total",
            "Requests answered on the data routes.",
            ("route", "status"),
            registry=self.own,
        )
        self._seconds = Histogram(
            "kvmanager_request_seconds",
            "Time from a request's headers to its answer.",
            ("route",),
            buckets=_BUCKETS,
            registry=self.own,
        )
        up = Gauge("kvmanager_redis_up", "Whether Redis answers.", registry=self.own)
        up.set_function(lambda: float(not down()))

    def watch(self, route: str) -> Watch:
        """What is told of each answer of one route."""
        counters = [self._requests.labels(route, name) for name in _CLASSES]
        seconds = self._seconds.labels(route)

        def watch(status: int, took_s: float) -> None:
            counters[status // 100 - 1].inc()
            seconds.observe(took_s)

        return watch


def exposition_of(*collectors: Collector) -> bytes:
    """What they have as Prometheus reads it."""
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    return generate_latest(registry)
