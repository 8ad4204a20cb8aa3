"""`hicache-storage demo`: two processes share the pages of conversations, before your eyes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hicache_storage.cli.output import AsJson, print_json

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hicache_storage.tools.demo import DemoPlan, DemoResult

CAVEAT = (
    "Pages written a moment ago may come from a cache of the system or of the device. Loading is "
    "one rank's storage without the copy to the accelerator. 1 MiB is what 64 tokens of Llama-3-8B "
    "in bf16 take on one of 8 tensor-parallel ranks."
)


def demo(
    page_bytes: Annotated[str, typer.Option(help="Size of a page of 64 tokens.")] = "1MiB",
    users: Annotated[int, typer.Option(help="Conversations at once.")] = 8,
    turns: Annotated[int, typer.Option(help="Turns of each conversation.")] = 4,
    prefill_tokens_per_s: Annotated[
        float, typer.Option(help="Assumed speed of computing a prompt anew, of the whole server.")
    ] = 8000,
    directory: Annotated[
        Path | None, typer.Option("--dir", help="Work below this directory; else a temporary one.")
    ] = None,
    endpoint: Annotated[
        str, typer.Option(help="The registry; 'embedded': a Valkey of this machine's processes.")
    ] = "embedded",
    forever: Annotated[
        bool, typer.Option("--forever", help="Be one process of a deployment, until it is ended.")
    ] = False,
    tenant: Annotated[str, typer.Option(help="With --forever: whose pages.")] = "default",
    capacity: Annotated[
        str, typer.Option(help="With --forever: bytes kept in --dir, all processes together.")
    ] = "1GiB",
    requests_per_s: Annotated[
        float, typer.Option(help="With --forever: requests a second of this process.")
    ] = 2.0,
    as_json: AsJson = False,
) -> None:
    """Show two processes writing, finding and verifying each other's pages.

    With --forever this is one such process, and makes traffic: start several over one --dir and
    one --endpoint.
    """
    from hicache_backends.sizes import parse_size
    from hicache_storage.tools.demo import DemoPlan

    plan = DemoPlan(
        page_bytes=parse_size(page_bytes, name="--page-bytes", minimum=8),
        users=users,
        turns=turns,
        prefill_tokens_per_s=prefill_tokens_per_s,
        directory=directory,
        endpoint=endpoint,
    )
    if forever:
        _serve(plan, tenant, capacity, requests_per_s, as_json=as_json)
        return
    result = _with_progress(plan)
    if as_json:
        print_json(result.to_json())
    else:
        _show(plan, result.to_json())
    if result.replay.total.wrong_pages:
        raise typer.Exit(1)


def _serve(
    plan: DemoPlan, tenant: str, capacity: str, requests_per_s: float, *, as_json: bool
) -> None:
    import json
    import os
    import time

    from hicache_storage.tools.demo_traffic import TrafficPlan, serve

    def report(figures: dict[str, Any]) -> None:
        words = (f"{name.replace('_', ' ')} {value}" for name, value in figures.items())
        typer.echo(json.dumps(figures) if as_json else ", ".join(words))
        sys.stdout.flush()
        if figures["wrong_pages"]:
            raise typer.Exit(1)

    def again(wait_s: float) -> bool:
        time.sleep(wait_s)
        return True

    traffic = TrafficPlan(plan, tenant, capacity, requests_per_s, dict(os.environ))
    serve(traffic, report, again)


def _with_progress(plan: DemoPlan) -> DemoResult:
    from hicache_storage.cli.progress import counted
    from hicache_storage.tools.demo import demo as run

    with counted("serving requests", plan.requests) as advance:
        return run(plan, advance)


def _show(plan: DemoPlan, figures: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(
        f"Two processes, one directory, one embedded registry. {plan.users} users, {plan.turns} "
        f"turns each, one system prompt; requests go to the processes in turn, so that every "
        f"conversation keeps changing sides.\n"
    )
    table = Table.grid(padding=(0, 2))
    for label, text in _story(plan, figures):
        table.add_row(f"[bold]{label}[/bold]", text)
    console.print(table)
    console.print(f"\n[dim]{CAVEAT}[/dim]")


def _story(plan: DemoPlan, figures: dict[str, Any]) -> Iterator[tuple[str, str]]:
    from hicache_backends.sizes import format_size

    by_process = " and ".join(str(node["pages_written"]) for node in figures["processes"])
    wrong = figures["wrong_pages"]
    yield "page", f"64 tokens, {format_size(plan.page_bytes)}"
    yield (
        "written",
        f"{figures['pages_written']:,} pages, {format_size(figures['bytes_written'])} in "
        f"{figures['writing_seconds']:.2f} s; {by_process} by the two processes",
    )
    yield (
        "deduplicated",
        f"{figures['pages_deduplicated']:,} of {figures['pages_referenced']:,} pages that the "
        "requests are made of were stored already, and not again",
    )
    yield (
        "found",
        f"{figures['prefix_hits']:,} pages in front of what was new, [bold]"
        f"{figures['remote_hits']:,}[/bold] of them written by the other process",
    )
    yield (
        "verified",
        f"{format_size(figures['bytes_read'])} read and compared byte by byte: "
        + (f"[red]{wrong} pages wrong[/red]" if wrong else "[green]no page wrong[/green]"),
    )
    yield (
        "loading",
        f"{figures['loading_seconds']:.2f} s for {figures['tokens_not_recomputed']:,} tokens, "
        f"look-ups included; {figures['read_gib_per_s']} GiB/s",
    )
    yield (
        "recomputing",
        f"{figures['recomputing_seconds']:.1f} s at an assumed "
        f"{figures['assumed_prefill_tokens_per_s']:,.0f} tokens/s (--prefill-tokens-per-s): "
        f"[bold]{figures['times_faster_than_recomputing']:.0f} times[/bold] as long",
    )
