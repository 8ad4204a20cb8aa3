"""`hicache-storage bench storage`: figures of this machine's disk, held against their bars."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicache_storage.cli.output import AsJson, print_figures, print_json, print_table, shown

if TYPE_CHECKING:
    from hicache_storage.tools.bench_plan import BenchPlan, Figures

MEASURE_HELP = "Of read, write, beside, scale; or all."


def bench_storage(
    directory: Annotated[Path, typer.Option("--dir", help="On the file system to measure.")],
    page_bytes: Annotated[str, typer.Option(help="Size of a page.")] = "1MiB",
    pages: Annotated[int, typer.Option(help="Pages of a full read or write; at least 128.")] = 512,
    pieces: Annotated[
        int, typer.Option(help="Also read layer-first pages of this many 32 KiB pieces.")
    ] = 0,
    beside_spinner: Annotated[
        bool, typer.Option("--beside-spinner", help="Also beside a thread that spins in Python.")
    ] = False,
    against: Annotated[
        str, typer.Option(help="Rivals, comma separated; empty for none.")
    ] = "fio,sglang-file",
    measure: Annotated[str, typer.Option(help=MEASURE_HELP)] = "read,write",
    runs: Annotated[int, typer.Option(help="Alternating runs; medians count.")] = 3,
    scale_pages: Annotated[
        int, typer.Option(help="Stored pages of the scale measure.")
    ] = 1_000_000,
    io_engine: Annotated[str, typer.Option(help="auto, native or posix.")] = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the store against fio, SGLang's file backend and its own bars."""
    from hicache_backends.sizes import parse_size
    from hicache_storage.tools.bench_plan import MEASURES, BenchPlan

    chosen = list(MEASURES) if measure == "all" else _listed(measure)
    if beside_spinner and "beside" not in chosen:
        chosen.append("beside")
    plan = BenchPlan(
        directory=directory,
        page_bytes=parse_size(page_bytes, name="--page-bytes", minimum=8),
        pages=pages,
        pieces=pieces,
        measures=tuple(chosen),
        against=tuple(_listed(against)),
        runs=runs,
        scale_pages=scale_pages,
        io_engine=io_engine,
    )
    figures = _with_status(plan)
    if as_json:
        print_json(figures)
    else:
        _show(plan, figures)


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _with_status(plan: BenchPlan) -> Figures:
    from hicache_storage.cli.progress import announced
    from hicache_storage.tools.bench_storage import bench_storage as run

    with announced() as say:
        return run(plan, lambda what: say(f"measuring {what}"))


def _show(plan: BenchPlan, figures: Figures) -> None:
    """The figures that have a bar, then the others."""
    from hicache_storage.tools.bench_plan import judged

    found = judged(plan, figures)
    print_table(
        f"{plan.pages} pages of {plan.page_bytes:,} bytes, {plan.runs} alternating runs",
        ("figure", "measured", "bar", ""),
        [
            (bar.what, value, f"{bar.sense} {bar.limit:,g}", "met" if bar.met(value) else "not met")
            for bar, value in found
        ],
    )
    with_bar = {bar.key.partition(".")[0] for bar, _ in found} | {"bars"}
    others = {name: _plain(value) for name, value in figures.items() if name not in with_bar}
    print_figures("", others, as_json=False)


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    return shown(value)
