"""`hicache-storage check`: initialise everything without traffic and say so."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import typer

from hicache_storage.cli.config import ConfigFile
from hicache_storage.cli.output import AsJson, print_error, print_json

if TYPE_CHECKING:
    from hicache_storage.tools.check import Report


def check(config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Initialise backend and registry, pass one page through them, and say what failed."""
    from hicache_storage.sglang.settings import file_config
    from hicache_storage.tools.check import dry_run

    report = dry_run(file_config(config))
    if as_json:
        print_json({"ok": report.ok, **dataclasses.asdict(report)})
    else:
        _show(report)
    if not report.ok:
        print_error(report.error)
        print_error(f"to do: {report.remedy}")
        raise typer.Exit(1)


def _show(report: Report) -> None:
    for step in report.steps:
        typer.echo(f"{step.name}: {step.detail}" if step.detail else step.name)
