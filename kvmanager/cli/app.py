"""The command line, put together. Commands import what they need when they run."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Annotated

import typer

from hicache_backends.errors import HiCacheError
from kvmanager.cli import lists, namespaces, tenants
from kvmanager.cli.caller import NotThere
from kvmanager.cli.drain import drain, mode
from kvmanager.cli.events import events
from kvmanager.cli.explain import explain
from kvmanager.cli.locate import locate
from kvmanager.cli.serve import serve
from kvmanager.cli.stats import stats
from kvmanager.cli.token import token

COMMANDS: tuple[Callable[..., None], ...] = (
    *(lists.processes, lists.servers, lists.hosts, lists.stores, lists.media),
    *(stats, locate, explain, events, drain, mode),
    *(serve, token),
)
PLUGGED_IN = "kvmanager.commands"
"""Entry points of commands that need more than the registry, by their names."""


def build() -> typer.Typer:
    """The application with all its commands, those of other packages included."""
    app = typer.Typer(
        name="kvmanager",
        help="The registry's service: which process holds which page of KV cache.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    for command in COMMANDS:
        app.command()(command)
    app.add_typer(namespaces.app, name="namespaces")
    app.add_typer(tenants.app, name="tenants")
    for entry in sorted(entry_points(group=PLUGGED_IN), key=lambda entry: entry.name):
        app.command(entry.name)(entry.load())
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command. 0: done; 1: there is no such thing, or it is not as it should be; 2: it
    could not be done, and one line says what to mend."""
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        build()(args=arguments)
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 1
    except NotThere as missing:
        return _failed(str(missing), 1, as_json=as_json)
    except HiCacheError as error:
        return _failed(str(error), 2, as_json=as_json)
    except OSError as error:  # such as a reader of standard output that is gone
        return _failed(error.strerror or str(error), 2, as_json=False)
    return 0


def _failed(why: str, status: int, *, as_json: bool) -> int:
    from kvmanager.cli.output import print_json

    if as_json:
        print_json({"error": why})
    typer.echo(f"kvmanager: {why}", err=True)
    return status


def _version(wanted: bool) -> None:
    if wanted:
        from hicache_backends.version import installed_version

        typer.echo(f"kvmanager {installed_version()}")
        raise typer.Exit


def _common(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    pass
