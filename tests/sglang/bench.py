"""Our backend beside SGLang's own `file` and `hf3fs` (mock client), in SGLang's own cache.

Each side has a tree, a controller with its threads, and host pools of its own; the same pages,
one run, sides alternating. A figure is the median of the rounds; a ratio is the median of the
rounds' ratios. `drive` is what fio takes for as many bytes at its best depth, past the page cache:
no cold prefetch can be much faster. Run it with `make bench-sglang`.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from array import array
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table
from sglang.srt.mem_cache.utils import get_storage_hash_str

from hicache_storage.tools.bench_arena import drop_page_cache
from hicache_storage.tools.bench_fio import Fio
from hicache_storage.tools.spinner import Spinner
from tests.sglang.harness.tree import Flags, Shape, Tree, tokens

PAGE_TOKENS = 32
MIB_PAGES = Shape(page_size=PAGE_TOKENS, layers=16, heads=8, head_dim=64)
"""Pages of 1 MiB."""
LAYOUTS = ("layer_first", "page_first")
OURS, BUFFERED = "ours", "ours, buffered"
OTHERS = ("file", "hf3fs")
DRIVE = "drive"
COLD = "prefetch cold"
PHASES = ("backup", COLD, "prefetch warm", "warm beside spinner")
PAGE_BYTES = 1 << 20
HF3FS_CONFIG = "SGLANG_HICACHE_HF3FS_CONFIG_PATH"


@dataclass
class Side:
    """One backend in a tree of its own, with `ids` stored."""

    name: str
    tree: Tree
    ids: array[int]
    folder: Path
    stored: list[torch.Tensor] = field(default_factory=list)

    def store(self) -> None:
        """Put the prompt there once, through the whole tree."""
        self.stored = self.tree.insert(self.ids)

    def back_up(self, seed: int) -> float:
        """Seconds to store as many pages again, under other hashes."""
        controller = self.tree.controller
        ids = tokens(len(self.ids) // PAGE_TOKENS, page_size=PAGE_TOKENS, seed=seed)
        host = controller.mem_pool_host.alloc(len(ids))
        hashes = get_storage_hash_str(ids, None, page_size=PAGE_TOKENS)
        began = time.perf_counter()
        controller.write_storage(host, ids, hashes, prefix_keys=[])
        done = controller.ack_backup_queue.get(timeout=120)
        took = time.perf_counter() - began
        controller.mem_pool_host.free(host)
        if done.completed_tokens != len(ids):
            raise AssertionError(f"{self.name} stored {done.completed_tokens} of {len(ids)} tokens")
        return took

    def prefetch(self) -> float:
        """Seconds to bring the prompt to host memory, which holds nothing of it."""
        self.forget()
        began = time.perf_counter()
        fetched = self.tree.prefetch(self.ids)
        took = time.perf_counter() - began
        if fetched != len(self.ids):
            raise AssertionError(f"{self.name} fetched {fetched} of {len(self.ids)} tokens")
        return took

    def forget(self) -> None:
        """Empty device and host memory, as a flush of SGLang's cache does."""
        self.tree.cache.reset()
        self.tree.allocator.clear()

    def check(self) -> None:
        """What the last prefetch brought is what was stored."""
        back = self.tree.load_back(self.ids)
        if not all(torch.equal(a, b) for a, b in zip(self.stored, back, strict=True)):
            raise AssertionError(f"{self.name} returned other bytes")


def measure(folder: Path, pages: int, rounds: int) -> dict[str, Any]:
    """Seconds of each layout, phase and side, and each other side's over ours."""
    figures: dict[str, Any] = {"pages": pages, "rounds": rounds}
    drive = _Drive(folder, pages)
    for layout in LAYOUTS:
        seconds: dict[str, dict[str, list[float]]] = {phase: {} for phase in PHASES}
        with ExitStack() as stack:
            sides = [
                stack.enter_context(_side(name, layout, folder / f"{layout}-{number}", pages))
                for number, name in enumerate((OURS, BUFFERED, *OTHERS))
            ]
            for number in range(rounds):
                for phase in PHASES:
                    for side in sides:
                        took = _run(side, phase, number)
                        seconds[phase].setdefault(side.name, []).append(took)
                seconds[COLD].setdefault(DRIVE, []).append(drive.seconds())
            for side in sides:
                side.check()
        figures[layout] = {phase: _summary(phase, by_side) for phase, by_side in seconds.items()}
    return figures


def _run(side: Side, phase: str, number: int) -> float:
    if phase == "backup":
        return side.back_up(seed=number + 1)
    if phase == COLD:
        drop_page_cache(side.folder)
        return side.prefetch()
    if phase == "prefetch warm":
        side.prefetch()
        return side.prefetch()
    side.forget()
    with Spinner():
        return side.prefetch()


def _summary(phase: str, by_side: Mapping[str, list[float]]) -> dict[str, Any]:
    """A warm read is by the mode that uses the page cache, as the others do."""
    own = by_side[BUFFERED if "warm" in phase else OURS]
    ratios = {
        name: round(statistics.median(t / o for t, o in zip(by_side[name], own, strict=True)), 2)
        for name in (*OTHERS, *({DRIVE} & by_side.keys()))
    }
    return {
        "seconds": {name: round(statistics.median(s), 4) for name, s in by_side.items()},
        "times_ours": ratios,
    }


@contextmanager
def _side(name: str, layout: str, folder: Path, pages: int) -> Iterator[Side]:
    folder.mkdir()
    ids = tokens(pages, page_size=PAGE_TOKENS)
    shape = replace(MIB_PAGES, layout=layout, tokens=len(ids) + 4 * PAGE_TOKENS)
    backend = name if name in OTHERS else "dynamic"
    config = _config(name, folder)
    if name == "hf3fs":
        place = folder / "hf3fs.json"
        size = (4 * pages + 64) * PAGE_BYTES
        place.write_text(
            json.dumps(
                {
                    "file_path_prefix": f"{folder}/hf3fs",
                    "file_size": size,
                    "numjobs": 16,
                    "entries": 8,
                }
            )
        )
        os.environ[HF3FS_CONFIG] = str(place)
    with Tree(config, shape, flags=Flags(storage_backend=backend, host_ratio=2.5)) as tree:
        side = Side(name, tree, ids, folder)
        side.store()
        yield side


def _config(name: str, folder: Path) -> dict[str, Any]:
    if name == "file":
        return {"file_storage_path": str(folder)}
    if name == "hf3fs":
        return {"use_mock_hf3fs_client": True}
    return {
        "backend_name": "hicache",
        "module_path": "hicache_storage.sglang",
        "class_name": "HiCacheL3",
        "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": True,
        "storage_backend": "nvme",
        "nvme": {
            "path": str(folder / "pages"),
            "io_mode": "buffered" if name == BUFFERED else "auto",
            "capacity": "4GiB",
            "free_floor": 0,
        },
        "identity": {"model": "bench", "revision": "1"},
    }


class _Drive:
    """Reads of as many bytes from the same disk by fio, at the depth that suits it best."""

    def __init__(self, folder: Path, pages: int) -> None:
        self._bytes = pages * PAGE_BYTES
        self._fio = Fio(PAGE_BYTES, self._bytes)
        self._file = folder / "fio"
        self._fio.lay_out(self._file)
        self._depth = self._fio.best_depth("read", self._file, 3)

    def seconds(self) -> float:
        """How long one reading of all of them takes."""
        return self._bytes / self._fio.bytes_per_s("read", self._file, self._depth)


def main(
    directory: Annotated[Path, typer.Option(help="On the disk to measure.")] = Path("build/bench"),
    pages: Annotated[int, typer.Option(help="Pages of 1 MiB.", min=2)] = 300,
    rounds: Annotated[int, typer.Option(min=1)] = 5,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Times of backup and prefetch, ours and SGLang's own backends'."""
    directory.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=directory) as folder:
        figures = measure(Path(folder), pages, rounds)
    if as_json:
        typer.echo(json.dumps(figures))
        return
    others = (*OTHERS, DRIVE)
    table = Table("layout", "phase", OURS, BUFFERED, *others, *(f"{o} / ours" for o in others))
    for layout in LAYOUTS:
        for phase, row in figures[layout].items():
            sides = (OURS, BUFFERED, *others)
            times = [_shown(row["seconds"].get(name), 1000, " ms") for name in sides]
            ratios = [_shown(row["times_ours"].get(name), 1, " x") for name in others]
            table.add_row(layout, phase, *times, *ratios)
    Console(width=160).print(table)


def _shown(value: float | None, scale: int, unit: str) -> str:
    return "" if value is None else f"{value * scale:.{0 if scale > 1 else 2}f}{unit}"


if __name__ == "__main__":
    from sglang_cpu.patches import apply

    apply()
    typer.run(main)
