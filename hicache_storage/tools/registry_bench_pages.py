"""Figures of the registry with pages made up for them: rates, memory, growth, a busy process."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageError
from hicache_backends.storage import PageEntry
from hicache_storage.tools.registry_bench_plan import MEMORY_PAGES, Progress, RegistryBenchPlan
from hicache_storage.tools.registry_bench_store import (
    PAGE_BYTES,
    TIMEOUT_MS,
    loopback_valkey,
    open_bench_store,
    random_entries,
    session,
    store_batch,
    used_bytes,
)
from hicache_storage.tools.spinner import Spinner
from kvmanager.registry import Registry

FEW_PAGES = 10_000
BATCHES = (32, 128)
RATE_PAGES = 128 * 100
LOOKUP_PAGES = 128
LOOKUPS = 200
SPINNING_CALLS = 400


def claim_publish_keys_per_s(plan: RegistryBenchPlan, progress: Progress) -> dict[str, float]:
    """By one client, for each batch size."""
    rates: dict[int, list[float]] = {batch: [] for batch in BATCHES}
    with loopback_valkey() as endpoint, _session(endpoint) as (registry, store):
        for number in range(plan.rounds):
            for batch in BATCHES:
                pages = random_entries(RATE_PAGES, store)
                began = time.perf_counter()
                _store_all(registry, pages, batch)
                rates[batch].append(RATE_PAGES / (time.perf_counter() - began))
            progress("claiming and publishing", (number + 1) / plan.rounds)
    return {str(batch): round(statistics.median(r)) for batch, r in rates.items()}


def growth(plan: RegistryBenchPlan, progress: Progress) -> dict[str, Any]:
    """Server memory a page at several sizes, and what a lookup costs at the largest against the
    smallest."""
    sizes = sorted({min(MEMORY_PAGES, plan.pages), plan.pages})
    memory: dict[str, float] = {}
    with ExitStack() as stack:
        few = stack.enter_context(_filled(FEW_PAGES, progress))
        for size in sizes[:-1]:
            with _filled(size, progress) as filled:
                memory[str(size)] = filled.bytes_per_page
        many = stack.enter_context(_filled(sizes[-1], progress))
        memory[str(sizes[-1])] = many.bytes_per_page
        costs = []
        for number in range(plan.rounds):
            costs.append((few.lookup_us(number, plan.rounds), many.lookup_us(number, plan.rounds)))
            progress("looking pages up", (number + 1) / plan.rounds)
    return {
        "memory_bytes_per_page": memory,
        "lookup_us_per_page": {
            str(FEW_PAGES): round(statistics.median(few[1] for few, _ in costs), 3),
            str(plan.pages): round(statistics.median(many[1] for _, many in costs), 3),
        },
        "first_lookup_cost_ratio": round(statistics.median(m[0] / f[0] for f, m in costs), 2),
        "lookup_cost_ratio": round(statistics.median(m[1] / f[1] for f, m in costs), 2),
    }


def beside_spinner(plan: RegistryBenchPlan, progress: Progress) -> dict[str, Any]:
    """`exists` of 128 keys while another thread of the process spins in Python: pages of the own
    store, and pages that only the registry knows."""
    keys = [f"{n:064x}" for n in range(2 * LOOKUP_PAGES)]
    local, remote = keys[:LOOKUP_PAGES], keys[LOOKUP_PAGES:]
    with (
        loopback_valkey() as endpoint,
        tempfile.TemporaryDirectory(dir=plan.directory) as root,
        open_bench_store(endpoint, Path(root)) as other,
        open_bench_store(endpoint, Path(root)) as store,
    ):
        other.set(remote, [bytes(PAGE_BYTES)] * LOOKUP_PAGES)
        store.set(local, [bytes(PAGE_BYTES)] * LOOKUP_PAGES)
        with Spinner():
            figures = {
                "local": _latencies(lambda: store.exists(local)),
                "registry": _latencies(lambda: store.exists(remote)),
            }
        progress("beside a spinning thread", 1.0)
    return figures


def _latencies(call: Callable[[], int]) -> dict[str, float]:
    took_ms = []
    for _ in range(SPINNING_CALLS):
        began = time.perf_counter()
        found = call()
        took_ms.append((time.perf_counter() - began) * 1000)
        if found != LOOKUP_PAGES:
            raise StorageError(f"{found} of {LOOKUP_PAGES} pages found")
    took_ms.sort()
    return {
        "p50_ms": round(took_ms[len(took_ms) // 2], 3),
        "p99_ms": round(took_ms[len(took_ms) * 99 // 100], 3),
    }


class _Filled:
    """A server that holds pages, and a session of a process that reaches them."""

    def __init__(self, registry: Registry, medium: bytes, pages: Sequence[PageEntry]) -> None:
        self._registry = registry
        self._medium = medium
        self._digests = [page.digest for page in pages]
        random.Random(1).shuffle(self._digests)  # noqa: S311  # the same order every time
        self.bytes_per_page = 0.0

    def lookup_us(self, number: int, rounds: int) -> tuple[float, float]:
        """Microseconds a page, in batches of 128 scattered pages: the first time that they are
        looked up, which marks them as used, and afterwards. Each round has pages of its own."""
        count = FEW_PAGES // rounds // LOOKUP_PAGES
        first = number * count * LOOKUP_PAGES
        batches = [
            self._digests[at : at + LOOKUP_PAGES]
            for at in range(first, first + count * LOOKUP_PAGES, LOOKUP_PAGES)
        ]
        return self._timed(batches), self._timed(batches * (LOOKUPS // count))

    def _timed(self, batches: Sequence[Sequence[bytes]]) -> float:
        began = time.perf_counter()
        for batch in batches:
            self._registry.lookup(batch, [self._medium], Deadline.after_ms(TIMEOUT_MS))
        return (time.perf_counter() - began) / (len(batches) * LOOKUP_PAGES) * 1e6


@contextmanager
def _filled(pages: int, progress: Progress) -> Iterator[_Filled]:
    with loopback_valkey() as endpoint:
        empty = used_bytes(endpoint)
        with _session(endpoint) as (registry, store):
            stored = random_entries(pages, store)
            _store_all(registry, stored, 1024, lambda share: progress(f"{pages:,} pages", share))
            filled = _Filled(registry, store, stored)
            filled.bytes_per_page = round((used_bytes(endpoint) - empty) / pages, 1)
            yield filled


@contextmanager
def _session(endpoint: str) -> Iterator[tuple[Registry, bytes]]:
    """A session of a store on a medium of the same name."""
    store = uuid.uuid4().bytes
    with session(endpoint, store, store) as registry:
        yield registry, store


def _store_all(
    registry: Registry,
    pages: Sequence[PageEntry],
    batch: int,
    progress: Callable[[float], None] = lambda _share: None,
) -> None:
    for at in range(0, len(pages), batch):
        store_batch(registry, pages[at : at + batch])
        progress(min(1.0, (at + batch) / len(pages)))
