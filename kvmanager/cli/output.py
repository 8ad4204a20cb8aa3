"""How commands speak: figures on standard output, as a table or as JSON; errors on the other."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

_PIPE_WIDTH = 1000
"""Columns of what is no terminal: nothing is cut or broken."""

AsJson = Annotated[bool, typer.Option("--json", help="Print the figures as JSON.")]


def print_json(value: object) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(value, indent=2, default=str))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output; where that is no terminal, as wide as its contents."""
    from rich.console import Console
    from rich.table import Table

    table = Table(*columns, title=title, title_justify="left", show_header=bool(columns))
    for row in rows:
        table.add_row(*(shown(cell) for cell in row))
    width = None if sys.stdout.isatty() else _PIPE_WIDTH
    Console(markup=False, highlight=False, width=width).print(table)


def print_figures(title: str, figures: Mapping[str, object], *, as_json: bool) -> None:
    """Named figures, one a row."""
    if as_json:
        print_json(figures)
    else:
        print_table(title, (), [(name.replace("_", " "), v) for name, v in figures.items()])


def shown(value: object) -> str:
    """A cell: thousands apart, nothing for None, lists in one line."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:,.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(shown(item) for item in value)
    return printable(str(value))


def printable(text: str) -> str:
    """A text, such as a file's name, without what a terminal would obey."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def say(message: str) -> None:
    """Something to know besides what was asked for, on standard error."""
    typer.echo(f"kvmanager: {message}", err=True)


def print_failure(message: str, remedy: str, *, as_json: bool) -> None:
    """Why a command could not do its work: on standard error, and for `--json` as JSON, too."""
    if as_json:
        print_json({"error": message, "remedy": remedy})
    print_error(message)


def print_error(message: str) -> None:
    """What went wrong and what to do, on standard error."""
    for line in message.splitlines():
        typer.secho(f"error: {printable(line)}", fg="red", err=True, bold=sys.stderr.isatty())
