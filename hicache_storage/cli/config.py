"""`hicache-storage config`: what is in force, and what there is."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from hicache_storage.cli.output import AsJson, print_json, print_table

app = typer.Typer(no_args_is_help=True, help="Show the configuration, its schema, its keys.")

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", help="Configuration file, .json or .toml."),
]


@app.command()
def show(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show every value in force and where it came from; secrets are hidden."""
    from hicache_storage.config.describe import settings
    from hicache_storage.sglang.settings import file_config

    found = list(settings(file_config(config)))
    if as_json:
        print_json([dataclasses.asdict(setting) for setting in found])
    else:
        rows = [(s.key, s.value, s.source) for s in found]
        print_table("", ("key", "value", "from"), rows)


@app.command()
def schema() -> None:
    """Print the JSON Schema of a configuration file."""
    from hicache_storage.config.describe import json_schema

    print_json(json_schema())


@app.command()
def table() -> None:
    """Print every key, its default and its meaning as a Markdown table."""
    from hicache_storage.config.describe import reference_table

    typer.echo(reference_table())
