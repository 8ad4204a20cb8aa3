"""Processes that report figures of their own making, by the calls that real ones make."""

from __future__ import annotations

import os
from collections import Counter
from types import TracebackType

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from kvmanager import keys
from kvmanager.connection import Pool
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.flow import Flow, T, answer
from kvmanager.model import Member
from kvmanager.options import RegistryOptions
from kvmanager.reports import Gauges, Hot, Report, StoreGauges
from kvmanager.wire import Wire

TTL_MS = 60_000


class Redis:
    """Carries flows out."""

    def __init__(self, url: str) -> None:
        self._driver = Driver(Pool(Endpoint.parse(url), 2000), RegistryOptions(timeout_ms=5000))

    def run(self, flow: Flow[T]) -> T:
        return self._driver.run(flow, Deadline.after_ms(5000))

    def __enter__(self) -> Redis:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._driver.pool.clear()


class Reporter:
    """One process with one store."""

    def __init__(
        self,
        redis: Redis,
        *,
        tenant: str = "default",
        model: str = "model",
        host: str = "host",
        rank: int = 0,
        kind: str = "nvme",
        medium: bytes | None = None,
        page_tokens: int = 64,
    ) -> None:
        self._redis = redis
        self.namespace = Namespace(
            model, "revision", "bf16", "page_first", page_tokens, 1 << 20, tenant=tenant
        )
        self.member = Member(
            os.urandom(16), host, "server", os.urandom(16), medium or os.urandom(16), rank=rank
        )
        self.wire = Wire(self.namespace, self.member)
        self.kind = kind
        self.tag = keys.tag(self.namespace.fingerprint)
        self._number = 0

    def beat(self, ttl_ms: int = TTL_MS) -> None:
        """Join, or say that one is there."""
        self._redis.run(answer(self.wire.beat(0, ttl_ms)))
        self._redis.run(_sent(self.wire.enlist()))

    def report(
        self,
        counters: dict[str, int],
        *,
        breaker: str = "up",
        hung: bool = False,
        pages: int = 0,
        hot: tuple[Hot, ...] = (),
    ) -> None:
        """Counters since the last report, and the state now."""
        self._number += 1
        size = pages * self.namespace.page_bytes
        gauges = Gauges(
            self.kind,
            breaker=breaker,
            hung=hung,
            version="1.0",
            pages=pages,
            bytes=size,
            capacity_bytes=1 << 40,
            stores=(StoreGauges(self.member.store, pages, size, 1 << 40),),
            hot=hot,
        )
        call = self.wire.figures(Report(self._number, counters, gauges))
        self._redis.run(answer(call))


def latencies(kind: str, operation: str, median: int, calls: int) -> dict[str, int]:
    """A plausible spread of `calls` around latency bucket `median`."""
    shares = (0.02, 0.06, 0.16, 0.26, 0.22, 0.13, 0.07, 0.04, 0.02, 0.01, 0.006, 0.004)
    counts: Counter[str] = Counter()
    for n, share in enumerate(shares):
        counts[f"op.{kind}.{operation}.{median - 3 + n}"] += int(calls * share)
    return {name: n for name, n in counts.items() if n}


def _sent(command: bytes) -> Flow[object]:
    reply: object = yield command
    return reply
