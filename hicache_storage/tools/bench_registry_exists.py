"""`exists` of pages that another process stored, asked of the registry beside the spinner."""

from __future__ import annotations

import sys
from pathlib import Path

from hicache_backends.errors import StorageError
from hicache_backends.nvme import NvmeOptions
from hicache_storage.page_store import PageStore
from hicache_storage.tools.bench_arena import all_ok, bench_namespace, pieces_of
from hicache_storage.tools.bench_beside import latencies_ms
from hicache_storage.tools.bench_plan import BATCH_PAGES, BenchPlan, Figures, Say
from hicache_storage.tools.content import page_key, page_memory
from hicache_storage.tools.line_process import LineProcess, reply
from hicache_storage.tools.spinner import Spinner
from hicache_storage.tools.tool_store import open_tool_store
from kvmanager.options import RegistryOptions

PAGE_BYTES = 4096
KEYS = [page_key(block) for block in range(BATCH_PAGES)]


def measure_registry_exists(plan: BenchPlan, directory: Path, say: Say) -> Figures:
    """p50 and p99 of 128 keys, none of them in the own index, over an embedded registry."""
    say("exists through the registry beside the spinning thread")
    root = directory / "root"
    root.mkdir()
    with LineProcess.of_module("the process that stores", __name__, str(root)) as writer:
        writer.answer()
        with _open(root) as reader:
            if reader.exists(KEYS) != len(KEYS):
                raise StorageError("the registry does not know the pages of the other store")
            with Spinner():
                p50, p99 = latencies_ms(plan.exists_calls, lambda: reader.exists(KEYS))
    return {"exists_128": {"registry_p50_ms": round(p50, 3), "registry_p99_ms": round(p99, 3)}}


def _open(root: Path) -> PageStore:
    store, _ = open_tool_store(
        bench_namespace(PAGE_BYTES),
        NvmeOptions(paths=(str(root),), capacity_bytes=16 << 20),
        endpoint="embedded",
        registry_options=RegistryOptions(embedded_dir=str(root.parent)),
    )
    return store


def _store_pages(root: str) -> None:
    """The other process: stores the pages and stays until its input ends."""
    with _open(Path(root)) as store:
        pages = pieces_of(page_memory(BATCH_PAGES, PAGE_BYTES), BATCH_PAGES, 1)
        all_ok(store.set(KEYS, pages, parent=None))
        reply("ready")
        sys.stdin.read()


if __name__ == "__main__":
    _store_pages(sys.argv[1])
