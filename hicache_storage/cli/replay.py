"""`hicache-storage replay`: a request trace through several real processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hicache_storage.tools.replay_plan import ReplayPlan, ReplayResult


def replay(
    trace: Annotated[Path, typer.Argument(help="JSONL trace; one request with hash_ids a line.")],
    nodes: Annotated[int, typer.Option(help="Processes; request i goes to i mod N.")] = 1,
    block_bytes: Annotated[str, typer.Option(help="Size of a block's page.")] = "4KiB",
    capacity: Annotated[
        str | None, typer.Option(help="Of all stores together: pages, or a percentage.")
    ] = None,
    front: Annotated[
        str | None, typer.Option(help="An LRU of this share of the blocks before each process.")
    ] = None,
    concurrent: Annotated[
        bool, typer.Option("--concurrent", help="Every process at its own pace.")
    ] = False,
    corrupt: Annotated[int, typer.Option(help="Flip a bit in this many stored pages.")] = 0,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Where pages are stored; else a temporary one.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option(help="Endpoint; 'embedded' for several processes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")] = False,
) -> None:
    """Replay a trace through N processes that share one directory, comparing every page read."""
    from hicache_backends.sizes import parse_size
    from hicache_storage.tools.replay_plan import ReplayPlan

    plan = ReplayPlan(
        trace=trace,
        nodes=nodes,
        block_bytes=parse_size(block_bytes, name="--block-bytes", minimum=8),
        capacity=capacity,
        front=front,
        concurrent=concurrent,
        corrupt=corrupt,
        directory=directory,
        registry=registry,
    )
    result = _with_progress(plan)
    if as_json:
        typer.echo(json.dumps(result.to_json()))
    else:
        _show(plan, result)
    if result.total.wrong_pages:
        raise typer.Exit(1)


def _with_progress(plan: ReplayPlan) -> ReplayResult:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining

    from hicache_storage.tools.replay import replay as run
    from hicache_storage.tools.traces import read_requests

    columns = (TextColumn("replaying"), BarColumn(), MofNCompleteColumn(), Remaining())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        total = sum(1 for _ in read_requests(plan.trace))
        task = bar.add_task("requests", total=total)
        return run(plan, lambda requests: bar.advance(task, requests))


def _show(plan: ReplayPlan, result: ReplayResult) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{plan.trace.name}, {plan.nodes} process(es)", show_header=False)
    for name, value in result.to_json().items():
        shown = ", ".join(f"{k} {v:,}" for k, v in value.items()) if name == "misses" else value
        table.add_row(
            name.replace("_", " "), f"{shown:,}" if isinstance(shown, int) else str(shown)
        )
    Console().print(table)
