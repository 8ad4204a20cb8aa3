"""`hicache-storage sglang-args`: the flags that make a configuration SGLang's L3."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from hicache_storage.cli.output import print_json

_NO_PAGE_SIZE = (
    "page_size is not set in the section of the backend: without --page-size SGLang makes pages of "
    "one token; 64 is a good start"
)


def sglang_args(
    config: Annotated[
        Path,
        typer.Option("--config", "-c", help="Configuration file, at this path on every host."),
    ],
    layout: Annotated[
        str | None,
        typer.Option(help="Order of a page's bytes in host memory; page_first unless said."),
    ] = None,
    io_backend: Annotated[
        str | None,
        typer.Option(help="How pages get to the GPU: kernel, or direct with page_first_direct."),
    ] = None,
    write_policy: Annotated[
        str,
        typer.Option(help="write_through, write_through_selective (used twice) or write_back."),
    ] = "write_through",
    prefetch_policy: Annotated[
        str,
        typer.Option(help="timeout, wait_complete, or best_effort, which seldom waits for L3."),
    ] = "timeout",
    prefetch_threshold: Annotated[
        int | None,
        typer.Option(min=1, help="Fewest tokens worth asking for; SGLang's default is 256."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a list of arguments.")] = False,
) -> None:
    """Print what `python -m sglang.launch_server` needs besides --model-path.

    One line, quoted for a shell; checked by the argument parser of the SGLang installed here.
    """
    from hicache_storage.tools.sglang_args import Tuning, checked, launch_flags, words

    tuning = Tuning(layout, io_backend, write_policy, prefetch_policy, prefetch_threshold)
    result = checked(launch_flags(config, tuning))
    if as_json:
        print_json(words(result.flags))
    else:
        typer.echo(shlex.join(words(result.flags)))
    for note in result.notes:
        typer.echo(note, err=True)
    if "--page-size" not in result.flags:
        typer.echo(_NO_PAGE_SIZE, err=True)
