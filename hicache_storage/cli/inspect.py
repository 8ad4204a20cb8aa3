"""`hicache-storage inspect`: what lies in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicache_storage.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from hicache_storage.tools.media import MediumReport

Root = Annotated[Path, typer.Argument(help="Directory of the store.")]


def inspect(directory: Root, as_json: AsJson = False) -> None:
    """Show the medium in a directory: namespaces, stores, pages, who holds them, damage."""
    from hicache_storage.tools.media import read_medium

    report = read_medium(directory)
    if as_json:
        print_json(report.to_json())
    else:
        _show(report)


def _show(report: MediumReport) -> None:
    from hicache_backends.sizes import format_size

    medium = report.problem or report.medium
    if report.cluster:
        medium += f" of the 3FS cluster {report.cluster}"
    typer.echo(
        f"{report.root}: medium {medium}, {format_size(report.used_bytes)} of "
        f"{format_size(report.capacity_bytes)} used, {format_size(report.free_bytes)} free"
    )
    for found in report.namespaces:
        known = found.namespace
        title = f"{found.fingerprint[:16]}: " + (
            f"{known.model} {known.revision}, {known.kv_dtype}, {known.layout}, pages of "
            f"{known.page_tokens} tokens and {format_size(known.page_bytes)}, tenant {known.tenant}"
            if known
            else "its readable form is missing or damaged"
        )
        columns = ("store", "segments", "pages", "slots", "files", "damaged", "idle s", "in use by")
        rows = [
            (
                store.store[:16],
                store.segments,
                store.pages,
                store.slots,
                format_size(store.file_bytes),
                store.damaged_records,
                store.idle_s,
                store.in_use_by or "nobody",
            )
            for store in found.stores
        ]
        print_table(title, columns, rows)
