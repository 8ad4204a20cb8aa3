"""`hicache-storage bench registry`: what the registry does in a second and what a page costs it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicache_storage.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from hicache_storage.tools.registry_bench_plan import Progress


def bench_registry(
    trace: Annotated[
        Path | None, typer.Option(help="JSONL trace whose requests are looked up.")
    ] = None,
    clients: Annotated[int, typer.Option(help="Client processes at once.")] = 16,
    stored_requests: Annotated[
        int, typer.Option(help="Requests from the trace's start whose pages are stored.")
    ] = 6000,
    pages: Annotated[
        int, typer.Option(help="Most pages that memory and lookup cost are measured with.")
    ] = 50_000,
    rounds: Annotated[int, typer.Option(help="Alternating rounds; medians count.")] = 3,
    against: Annotated[
        str | None, typer.Option(help="'mini3fs': SGLang's metadata server, beside it.")
    ] = None,
    http: Annotated[
        bool, typer.Option("--http", help="Look the trace up by way of 'kvmanager serve', too.")
    ] = False,
    locate: Annotated[
        bool,
        typer.Option("--locate", help="Only how long routers wait for where a prefix is stored."),
    ] = False,
    sglang_wheel: Annotated[
        Path | None, typer.Option(help="Wheel to take mini3fs from; else installed or downloaded.")
    ] = None,
    cache: Annotated[
        Path | None, typer.Option(help="Where mini3fs and what it needs are kept.")
    ] = None,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Local disk for the stores of the clients.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Time the registry on real Valkey: lookups of a trace, claims and publishes, memory a page."""
    from hicache_storage.tools.registry_bench import bench
    from hicache_storage.tools.registry_bench_locate import locate_figures
    from hicache_storage.tools.registry_bench_plan import RegistryBenchPlan

    plan = RegistryBenchPlan(
        trace=trace,
        clients=clients,
        stored_requests=stored_requests,
        rounds=rounds,
        pages=pages,
        against=against,
        http=http,
        sglang_wheel=sglang_wheel,
        cache=cache,
        directory=directory,
    )
    with _progress() as progress:
        figures = locate_figures(progress) if locate else bench(plan, progress)
    if as_json:
        print_json(figures)
    elif locate:
        print_table("Where a prefix is stored", (), list(_flat(figures)))
    else:
        _show(figures)


@contextmanager
def _progress() -> Iterator[Progress]:
    """A bar a phase, on standard error."""
    from rich.console import Console
    from rich.progress import Progress as Bars
    from rich.progress import TaskID

    tasks: dict[str, TaskID] = {}
    with Bars(console=Console(stderr=True), transient=True) as bars:

        def progress(phase: str, share: float) -> None:
            if phase not in tasks:
                tasks[phase] = bars.add_task(phase, total=1.0)
            bars.update(tasks[phase], completed=share)

        yield progress


def _show(figures: dict[str, Any]) -> None:
    sides = ("registry", "http", "mini3fs")
    lookups = {side: figures.pop(side) for side in sides if side in figures}
    ratios = {
        "registry": figures.pop("ratio_to_mini3fs", {}),
        "http": figures.pop("http_ratio_to_mini3fs", {}),
    }
    if lookups:
        rows = [
            (
                case.replace("_", " "),
                side,
                *of_case.values(),
                ratios.get(side, {}).get(case),
            )
            for side, cases in lookups.items()
            for case, of_case in cases.items()
        ]
        columns = ("lookups", "by", "requests/s", "p50 ms", "p99 ms", "pages found", "ratio")
        print_table("Requests of the trace", columns, sorted(rows))
    print_table("Registry", (), list(_flat(figures)))


def _flat(figures: dict[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    for name, value in figures.items():
        title = f"{above} {name}".strip().replace("_", " ")
        if isinstance(value, dict):
            yield from _flat(value, title)
        else:
            yield title, value
