"""How fast pages are read and written: against fio, against SGLang's files, in pieces."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hicache_storage.tools.bench_arena import (
    Arena,
    drop_page_cache,
    io_mode,
    open_arena,
    pieces_of,
    settle,
)
from hicache_storage.tools.bench_files import FileArena
from hicache_storage.tools.bench_fio import Fio
from hicache_storage.tools.bench_plan import BenchPlan, Comparison, Figures, Say, alternate, merge

PIECE_BYTES = 32 << 10


def measure_reads(plan: BenchPlan, directory: Path, say: Say) -> Figures:
    """Cold and warm reads of all pages in one call, checksums verified."""
    figures: Figures = {}
    files = None
    if "sglang-file" in plan.against:
        files = FileArena(directory / "files", plan.page_bytes, plan.pages)
        figures["sglang_file"] = files.files.name
    with open_arena(plan, directory / "cold") as arena:
        arena.write()
        if "fio" in plan.against:
            say("cold reads against fio")
            merge(figures, _cold_against_fio(plan, arena))
        if files is not None:
            say("cold reads against SGLang's file backend")
            result = alternate(plan.runs, _cold(arena), _cold(files))
            merge(figures, _compared("sglang_file", "read_cold", result))
        arena.check(range(plan.pages))
        merge(figures, {"io": {"cold": io_mode(arena)}})
    if files is not None:
        say("warm reads against SGLang's file backend")
        with open_arena(plan, directory / "warm", io_mode="buffered") as arena:
            arena.write()
            for side in (arena, files):
                settle(side.directory)
                side.read()
            result = alternate(plan.runs, arena.read, files.read)
            merge(figures, _compared("sglang_file", "read_warm", result))
            arena.check(range(plan.pages))
            merge(figures, {"io": {"warm": io_mode(arena)}})
        files.check()
    return figures


def measure_writes(plan: BenchPlan, directory: Path, say: Say) -> Figures:
    """New pages over old ones: the store is full, so every set evicts and overwrites."""
    if "fio" not in plan.against:
        return {}
    say("writes against fio")
    fio = Fio(plan.page_bytes, plan.total_bytes)
    file = directory / "fio.data"
    fio.lay_out(file)
    depth = fio.best_depth("write", file, plan.runs)
    with open_arena(plan, directory / "write") as arena:
        arena.write()
        blocks = itertools.count(plan.pages, plan.pages)
        result = alternate(
            plan.runs,
            lambda: arena.write(next(blocks)),
            lambda: fio.bytes_per_s("write", file, depth),
        )
        figures: Figures = {"io": {"write": io_mode(arena)}, "fio_depth": {"write": depth}}
    file.unlink()
    return figures | _compared("fio", "write", result)


def measure_pieces(plan: BenchPlan, directory: Path, say: Say) -> Figures:
    """Layer-first pages against one-piece pages of the same size, from the medium."""
    if not plan.pieces:
        return {}
    say(f"pages of {plan.pieces} pieces")
    page_bytes = plan.pieces * PIECE_BYTES
    pages = max(128, plan.total_bytes // page_bytes)
    layered = replace(plan, page_bytes=page_bytes, pages=pages)
    with open_arena(layered, directory / "pieces", io_mode="direct") as arena:
        arena.write()
        pieces = pieces_of(arena.memory, pages, plan.pieces)
        drop_page_cache(arena.directory)
        result = alternate(plan.runs, lambda: arena.read(pieces), arena.read)
        mode = io_mode(arena)
    return {"pieces_ratio": round(result.ratio, 3), "pieces": {**result.figures(), "io": mode}}


def _cold_against_fio(plan: BenchPlan, arena: Arena) -> Figures:
    """fio reads the very extents that hold the pages."""
    fio = Fio(plan.page_bytes, plan.total_bytes)
    depth = fio.best_depth("read", arena.data_file, plan.runs)

    def theirs() -> float:
        drop_page_cache(arena.directory)
        return fio.bytes_per_s("read", arena.data_file, depth)

    result = alternate(plan.runs, _cold(arena), theirs)
    return {"fio_depth": {"read": depth}} | _compared("fio", "read_cold", result)


def _cold(side: Arena | FileArena) -> Callable[[], float]:
    def read() -> float:
        drop_page_cache(side.directory)
        return side.read()

    return read


def _compared(rival: str, name: str, result: Comparison) -> Figures:
    return {
        f"ratio_to_{rival}": {name: round(result.ratio, 3)},
        f"{name}_{rival}": result.figures(),
    }
