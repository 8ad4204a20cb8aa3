"""What is measured: a page store on a directory of its own, and memory for its pages."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

import numpy as np

from hicache_backends.errors import StorageError
from hicache_backends.identity import Namespace
from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.outcomes import Outcome
from hicache_backends.pages import Pages
from hicache_backends.segment.segment import stored_bytes
from hicache_storage.page_store import PageStore
from hicache_storage.tools.bench_plan import BenchPlan
from hicache_storage.tools.content import PageContent, page_key, page_memory

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")
TIMEOUT_MS = 120_000.0


def bench_namespace(page_bytes: int) -> Namespace:
    """The namespace of benchmark pages."""
    return Namespace("bench-storage", "1", "uint8", "block", page_tokens=64, page_bytes=page_bytes)


def pieces_of(memory: np.ndarray, pages: int, pieces: int) -> Pages:
    """The pages in `memory` (shape (pages, page_bytes)), one piece each, or layer first: piece l
    of every page lies in the l-th part of the memory."""
    piece_bytes = memory.shape[1] // pieces
    base = np.uint64(memory.__array_interface__["data"][0])
    page, piece = np.meshgrid(np.arange(pages), np.arange(pieces), indexing="ij")
    addresses = base + ((piece * pages + page) * piece_bytes).astype(np.uint64)
    sizes = np.full(addresses.size, piece_bytes, dtype=np.uint64)
    return Pages.from_pointers(addresses.ravel(), sizes, pieces=pieces, keep=(memory,))


class Arena:
    """A page store that holds the blocks 0 to `pages` - 1 as one chain, in one segment."""

    def __init__(
        self,
        directory: Path,
        page_bytes: int,
        pages: int,
        *,
        io_mode: str = "auto",
        io_engine: str = "auto",
    ) -> None:
        room_bytes = stored_bytes(pages, page_bytes)
        options = NvmeOptions(
            paths=(str(directory),),
            capacity_bytes=room_bytes,
            segment_bytes=room_bytes,
            io_mode=io_mode,
            io_engine=io_engine,
        )
        directory.mkdir(parents=True, exist_ok=True)
        namespace = bench_namespace(page_bytes)
        self.directory = directory
        self.pages = pages
        self.page_bytes = page_bytes
        self.content = PageContent(page_bytes)
        self.store = PageStore(open_nvme(namespace, options), namespace)
        self.memory = page_memory(pages, page_bytes)
        self.targets = pieces_of(self.memory, pages, 1)
        self.keys = [page_key(block) for block in range(pages)]

    def __enter__(self) -> Arena:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.store.close()

    @property
    def data_file(self) -> Path:
        """The data file of the segment that holds the pages."""
        return max(self.directory.glob("*/*/seg-*.data"), key=lambda path: path.stat().st_size)

    def write(self, first_block: int = 0) -> float:
        """Store the chain of blocks from `first_block` on; bytes a second."""
        blocks = range(first_block, first_block + self.pages)
        self.content.fill(blocks, self.memory)
        keys = [page_key(block) for block in blocks]
        began = time.perf_counter()
        outcomes = self.store.set(keys, self.targets, parent=None, timeout_ms=TIMEOUT_MS)
        seconds = time.perf_counter() - began
        all_ok(outcomes)
        self.keys = keys
        return self.pages * self.page_bytes / seconds

    def read(self, targets: Pages | None = None) -> float:
        """Read every page; bytes a second."""
        return self.pages * self.page_bytes / self.batch(range(self.pages), targets)

    def batch(self, which: Sequence[int], targets: Pages | None = None) -> float:
        """Read these pages in one call, into their own places; seconds."""
        keys = [self.keys[n] for n in which]
        pages = (self.targets if targets is None else targets)[list(which)]
        began = time.perf_counter()
        outcomes = self.store.get(keys, pages, timeout_ms=TIMEOUT_MS)
        seconds = time.perf_counter() - began
        all_ok(outcomes)
        return seconds

    def check(self, which: Sequence[int], first_block: int = 0) -> None:
        """Compare pages that were read with what they must hold. Raises StorageError."""
        blocks = [first_block + n for n in which]
        if self.content.wrong(blocks, self.memory[list(which)]).any():
            raise StorageError("a page was read wrong")


def all_ok(outcomes: Sequence[Outcome]) -> None:
    """Raises StorageError if a page of a measured batch was missed: the figure would be void."""
    for outcome in outcomes:
        if not outcome.ok:
            reason = outcome.reason.value if outcome.reason else "no reason"
            raise StorageError(f"a measured page failed: {reason} {outcome.detail}")


def settle(directory: Path) -> None:
    """Write a directory's files back, so that no writing disturbs what is measured next."""
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def drop_page_cache(directory: Path) -> None:
    """Write a directory's files back and out of the page cache; as root all others too."""
    settle(directory)
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if os.access(_DROP_CACHES, os.W_OK):
        _DROP_CACHES.write_text("1\n")


def io_mode(arena: Arena) -> str:
    """I/O engine and mode in force, as the store says."""
    stats = arena.store.stats()
    return "/".join(str(stats.get(f"storage_{name}", "?")) for name in ("io_engine", "io_mode"))


def open_arena(plan: BenchPlan, directory: Path, *, io_mode: str = "auto") -> Arena:
    """An arena of the plan's pages and engine."""
    return Arena(directory, plan.page_bytes, plan.pages, io_mode=io_mode, io_engine=plan.io_engine)
