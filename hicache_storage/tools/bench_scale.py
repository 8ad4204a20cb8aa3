"""What a large index costs: memory, start-up, and each call against a small index.

Two stores of small pages, one with `scale_pages` pages and one with a hundredth of them, take the
same calls in turn. The large one is then closed and opened again by a fresh process.
"""

from __future__ import annotations

import json
import random
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.segment.segment import stored_bytes
from hicache_storage.options import StoreOptions
from hicache_storage.page_store import PageStore
from hicache_storage.tools.bench_arena import TIMEOUT_MS, all_ok, bench_namespace, pieces_of
from hicache_storage.tools.bench_plan import BATCH_PAGES, BenchPlan, Figures, Say
from hicache_storage.tools.content import PageContent, page_key, page_memory
from hicache_storage.tools.line_process import LineProcess, reply

PAGE_BYTES = 4096
CHAIN_PAGES = 32
FILL_PAGES = 1024
ROUNDS = 60
STARTS = 3


class ScaleStore:
    """A store of `pages` small pages in chains of 32, with room for `ROUNDS` batches more."""

    def __init__(self, directory: Path, pages: int, io_engine: str) -> None:
        self.pages = pages
        namespace = bench_namespace(PAGE_BYTES)
        room_bytes = stored_bytes(pages + ROUNDS * BATCH_PAGES, PAGE_BYTES)
        options = NvmeOptions(
            paths=(str(directory),), capacity_bytes=room_bytes, io_engine=io_engine
        )
        directory.mkdir(parents=True, exist_ok=True)
        self.store = PageStore(
            open_nvme(namespace, options),
            namespace,
            options=StoreOptions(batch_set_size=FILL_PAGES),
        )
        self._memory = page_memory(FILL_PAGES, PAGE_BYTES)
        self._targets = pieces_of(self._memory, FILL_PAGES, 1)
        self._content = PageContent(PAGE_BYTES)
        self._next = 0
        self._random = random.Random(1)  # noqa: S311 - which pages are asked for, no secret

    def fill(self) -> None:
        """Store the first `pages` pages."""
        while self._next < self.pages:
            self.set(min(FILL_PAGES, self.pages - self._next))

    def set(self, pages: int) -> float:
        """Store the next new pages; seconds. Once the room is used up, old ones are evicted."""
        blocks = range(self._next, self._next + pages)
        self._content.fill(blocks, self._memory[:pages])
        keys = [page_key(block) for block in blocks]
        seconds = 0.0
        for start in range(0, pages, CHAIN_PAGES):
            part = slice(start, min(start + CHAIN_PAGES, pages))
            began = time.perf_counter()
            outcomes = self.store.set(
                keys[part], self._targets[part], parent=None, timeout_ms=TIMEOUT_MS
            )
            seconds += time.perf_counter() - began
            all_ok(outcomes)
        self._next += pages
        return seconds

    def set_batch(self) -> float:
        """Store 128 new pages; seconds."""
        return self.set(BATCH_PAGES)

    def exists(self) -> float:
        """128 pages of four chains; seconds."""
        keys = self._some_keys()
        began = time.perf_counter()
        found = self.store.exists(keys)
        seconds = time.perf_counter() - began
        assert found == len(keys)  # noqa: S101 - else the figure is void
        return seconds

    def get(self) -> float:
        """128 pages of four chains; seconds."""
        keys = self._some_keys()
        began = time.perf_counter()
        outcomes = self.store.get(keys, self._targets[: len(keys)], timeout_ms=TIMEOUT_MS)
        seconds = time.perf_counter() - began
        all_ok(outcomes)
        return seconds

    def _some_keys(self) -> list[str]:
        chains = self._random.sample(range(self.pages // CHAIN_PAGES), BATCH_PAGES // CHAIN_PAGES)
        return [page_key(c * CHAIN_PAGES + n) for c in chains for n in range(CHAIN_PAGES)]


CALLS: dict[str, Callable[[ScaleStore], float]] = {
    "exists": ScaleStore.exists,
    "get": ScaleStore.get,
    "set": ScaleStore.set_batch,  # uses the room up, so that
    "evict": ScaleStore.set_batch,  # the same call evicts from here on
}


def measure_scale(plan: BenchPlan, directory: Path, say: Say) -> Figures:
    """The ratio of each call's cost a page, many stored pages to few; the index's own costs."""
    many, few = directory / "many", directory / "few"
    sizes = {many: plan.scale_pages, few: plan.scale_pages // 100}
    with ExitStack() as stack:
        stores = {}
        for path, pages in sizes.items():
            say(f"storing {pages:,} small pages")
            stores[path] = ScaleStore(path, pages, plan.io_engine)
            stack.callback(stores[path].store.close)
            stores[path].fill()
        say("the cost of each call")
        costs = {call: _costs(call, [stores[many], stores[few]]) for call in CALLS}
    say("start-up of a large store")
    starts = [_start(many) for _ in range(STARTS)]
    return {
        "scale_pages": sizes[many],
        "scale_ratio": {call: round(large / small, 3) for call, (large, small) in costs.items()},
        "scale_us_a_page": {
            call: [round(cost * 1e6 / BATCH_PAGES, 3) for cost in pair]
            for call, pair in costs.items()
        },
        "index": {
            "pages": starts[0]["pages"],
            "bytes_a_page": round(median(s["bytes"] / s["pages"] for s in starts), 1),
            "startup_seconds": round(median(s["seconds"] for s in starts), 3),
        },
    }


def _costs(call: str, stores: Sequence[ScaleStore]) -> tuple[float, float]:
    """Median seconds of one batch of each store, the stores in turn."""
    found: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS):
        for n in (0, 1) if turn % 2 == 0 else (1, 0):
            found[n].append(CALLS[call](stores[n]))
    return median(found[0]), median(found[1])


def _start(directory: Path) -> dict[str, float]:
    with LineProcess.of_module("the starting process", __name__, str(directory)) as child:
        raw: dict[str, float] = json.loads(child.answer())
    return raw


def _resident_bytes() -> int:
    with Path("/proc/self/statm").open() as file:
        return int(file.read().split()[1]) * 4096


def _open_and_report(directory: str) -> None:
    namespace = bench_namespace(PAGE_BYTES)
    before, began = _resident_bytes(), time.perf_counter()
    storage = open_nvme(namespace, NvmeOptions(paths=(directory,)))
    seconds = time.perf_counter() - began
    used = _resident_bytes() - before
    pages = storage.stats()["pages"]
    storage.close()
    reply(json.dumps({"seconds": seconds, "bytes": used, "pages": pages}))


if __name__ == "__main__":
    _open_and_report(sys.argv[1])
