"""`hicache-storage bench storage`: figures of this machine's disk, held against their bars."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

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
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
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
    )
    figures = _with_status(plan)
    if as_json:
        typer.echo(json.dumps(figures))
    else:
        _show(plan, figures)


def _listed(names: str) -> list[str]:
    return [name.strip() for name in names.split(",") if name.strip()]


def _with_status(plan: BenchPlan) -> Figures:
    from rich.console import Console

    from hicache_storage.tools.bench_storage import bench_storage as run

    with Console(stderr=True).status("starting") as status:
        return run(plan, lambda what: status.update(f"measuring {what}"))


def _show(plan: BenchPlan, figures: Figures) -> None:
    from rich.console import Console
    from rich.table import Table

    from hicache_storage.tools.bench_plan import judged

    console = Console()
    table = Table(title=f"{plan.pages} pages of {plan.page_bytes:,} bytes, {plan.runs} runs")
    for column in ("figure", "measured", "bar", ""):
        table.add_column(column, justify="left" if column == "figure" else "right")
    for bar, value in judged(plan, figures):
        verdict = "[green]met[/green]" if bar.met(value) else "[red]not met[/red]"
        table.add_row(bar.what, f"{value:,.3f}", f"{bar.sense} {bar.limit:,g}", verdict)
    console.print(table)
    judged_names = {bar.key.partition(".")[0] for bar, _ in judged(plan, figures)}
    rest = {k: v for k, v in figures.items() if k not in judged_names and k != "bars"}
    for name, value in rest.items():
        console.print(f"[dim]{name.replace('_', ' ')}: {_plain(value)}[/dim]")


def _plain(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_plain(inner)}" for name, inner in value.items())
    return str(value)
