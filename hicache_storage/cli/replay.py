"""`hicache-storage replay`: a request trace through several real processes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicache_storage.cli.output import AsJson, print_error, print_figures

if TYPE_CHECKING:
    from hicache_storage.tools.replay_plan import ReplayPlan, ReplayResult

_NAMED = 10


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
        Path | None,
        typer.Option("--dir", help="Local directory of registry and pages; else a temporary one."),
    ] = None,
    backend: Annotated[str, typer.Option(help="What keeps the pages, such as 3fs.")] = "nvme",
    path: Annotated[
        list[str] | None,
        typer.Option(help="Where it keeps them, if not in --dir; process i uses path i mod N."),
    ] = None,
    option: Annotated[
        list[str] | None, typer.Option(help="One of the backend's own, as name=value.")
    ] = None,
    registry: Annotated[
        str | None, typer.Option(help="Endpoint; 'embedded' for several processes.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay a trace through N processes that share their pages, comparing every page read."""
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
        backend=backend,
        paths=tuple(path or ()),
        options=_pairs(option or ()),
        registry=registry,
    )
    result = _with_progress(plan)
    figures = result.to_json()
    if not as_json:
        figures["misses"] = [f"{reason} {n:,}" for reason, n in figures["misses"].items()]
    print_figures(f"{trace.name}, {nodes} process(es)", figures, as_json=as_json)
    if result.total.wrong_pages:
        print_error(_wrong(result.total.wrong_pages, sorted(result.total.wrong)))
        raise typer.Exit(1)


def _wrong(pages: int, blocks: list[int]) -> str:
    """How many pages came back wrong, and of which blocks: the first of them."""
    named = ", ".join(map(str, blocks[:_NAMED])) + (", ..." if len(blocks) > _NAMED else "")
    return f"{pages:,} wrong page(s) were read, of {len(blocks):,} block(s): {named}"


def _pairs(options: Iterable[str]) -> dict[str, str]:
    from hicache_backends.errors import ConfigError

    pairs = [option.partition("=") for option in options]
    for name, equals, value in pairs:
        if not (name and equals):
            raise ConfigError(f"--option is name=value, not {name + equals + value!r}")
    return {name: value for name, _, value in pairs}


def _with_progress(plan: ReplayPlan) -> ReplayResult:
    from hicache_storage.cli.progress import counted
    from hicache_storage.tools.replay import replay as run
    from hicache_storage.tools.traces import read_requests

    with counted("replaying", sum(1 for _ in read_requests(plan.trace))) as advance:
        return run(plan, advance)
