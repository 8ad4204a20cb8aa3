"""GET /metrics: this service's own counters, and the sums of the tenants that a token is for."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fastapi import FastAPI, Request, Response
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from kvmanager.service.access import EVERY_TENANT
from kvmanager.service.control.base import PROBLEMS, Control
from kvmanager.service.control.census import Census
from kvmanager.service.control.overview import may_see
from kvmanager.service.loops.loop import Loop
from kvmanager.service.metrics import CONTENT_TYPE, Metrics, exposition_of
from kvmanager.service.routes import READERS
from kvmanager.service.sums import Sums, TenantLabels


def add_metrics(app: FastAPI, control: Control, metrics: Metrics, loops: Sequence[Loop]) -> None:
    """Add the route. A scrape asks nothing of Redis, and thousands of namespaces are added up
    beside the requests on the data path. What is not of single tenants is for tokens of them all.
    """
    labels = TenantLabels()
    background = Background(control.census, loops)

    @app.get(
        "/metrics",
        tags=["health"],
        summary="Counters for Prometheus",
        response_class=Response,
        responses={status: PROBLEMS[status] for status in (401, 403)},
    )
    async def exposition(request: Request) -> Response:
        grant = control.grant(request, READERS)
        seen = control.census.seen
        named = labels.of(seen.looks)
        sums = Sums.of(seen, {t: label for t, label in named.items() if may_see(grant, t)})
        own = (metrics.own, background) if EVERY_TENANT in grant.tenants else ()
        text = await asyncio.to_thread(exposition_of, *own, sums)
        return Response(text, media_type=CONTENT_TYPE)


@dataclass(frozen=True, eq=False)
class Background:
    """A collector: how well the service keeps up with its own work."""

    census: Census
    loops: Sequence[Loop]

    def collect(self) -> Iterator[Metric]:
        age = GaugeMetricFamily(
            "kvmanager_look_age_seconds", "Since the last look at the registry."
        )
        if self.census.age_s != float("inf"):
            age.add_metric([], self.census.age_s)
        yield age
        yield GaugeMetricFamily(
            "kvmanager_left_out_namespaces",
            "Namespaces that are too many to be looked at.",
            value=self.census.seen.left_out,
        )
        failures = CounterMetricFamily(
            "kvmanager_loop_failures",
            "Steps of the service's own work that failed.",
            labels=["loop"],
        )
        for loop in self.loops:
            failures.add_metric([loop.name], loop.failures)
        yield failures
