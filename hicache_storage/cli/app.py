"""The command line, put together. Commands import what they need when they run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from hicache_backends.errors import ConfigError, HiCacheError
from hicache_storage.cli import config, namespaces
from hicache_storage.cli.bench_registry import bench_registry
from hicache_storage.cli.bench_storage import bench_storage
from hicache_storage.cli.check import check
from hicache_storage.cli.clear import clear
from hicache_storage.cli.demo import demo
from hicache_storage.cli.fsck import fsck
from hicache_storage.cli.inspect import inspect
from hicache_storage.cli.output import print_error, print_failure, print_json
from hicache_storage.cli.replay import replay
from hicache_storage.cli.sglang_args import sglang_args

LOG_LEVELS = ("debug", "info", "warning", "error")


def build() -> typer.Typer:
    """The application with all its commands."""
    app = typer.Typer(
        name="hicache-storage",
        help="KV-cache pages shared by processes through storage.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
    )
    app.callback()(_common)
    app.command()(demo)
    app.command()(check)
    app.command()(sglang_args)
    app.add_typer(config.app, name="config")
    app.command()(inspect)
    app.add_typer(namespaces.app, name="namespaces")
    app.command()(clear)
    app.command()(fsck)
    app.command()(replay)
    bench = typer.Typer(no_args_is_help=True, help="Measure the storage and the registry.")
    bench.command("storage")(bench_storage)
    bench.command("registry")(bench_registry)
    app.add_typer(bench, name="bench")
    return app


def run(arguments: list[str] | None = None) -> int:
    """Run one command. 0: done; 1: it failed; 2: bad input, the message says what to do."""
    as_json = "--json" in (sys.argv[1:] if arguments is None else arguments)
    try:
        build()(args=arguments)
    except SystemExit as end:
        wrong = getattr(end.__context__, "format_message", None)  # of a command line
        if as_json and end.code == 2 and wrong:
            print_json({"error": wrong(), "remedy": "`hicache-storage COMMAND --help` has options"})
        return end.code if isinstance(end.code, int) else 1
    except HiCacheError as error:
        from hicache_storage.tools.remedies import remedy

        print_failure(str(error), remedy(error), as_json=as_json)
        return 2 if isinstance(error, ConfigError) else 1
    except OSError as error:  # such as a full disk behind standard output
        print_error(error.strerror or str(error))
        return 1
    return 0


def _version(wanted: bool) -> None:
    if wanted:
        from hicache_backends.version import installed_version

        typer.echo(f"hicache-storage {installed_version()}")
        raise typer.Exit


def _common(
    log_level: Annotated[
        str, typer.Option(envvar="HICACHE_LOG_LEVEL", help="debug, info, warning or error.")
    ] = "warning",
    log_json: Annotated[bool, typer.Option("--log-json", help="Log lines as JSON.")] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Say the version.")
    ] = False,
) -> None:
    from hicache_storage.log import configure

    if log_level.lower() not in LOG_LEVELS:
        raise typer.BadParameter(f"one of {', '.join(LOG_LEVELS)}", param_hint="--log-level")
    configure(log_level, as_json=log_json)
