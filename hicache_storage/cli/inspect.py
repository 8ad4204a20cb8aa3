"""`hicache-storage inspect`: what lies in a directory, under a URL or in a Mooncake cluster."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicache_backends.errors import ConfigError
from hicache_storage.cli.config import ConfigFile
from hicache_storage.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from hicache_storage.config import Config
    from hicache_storage.tools.media import MediumReport
    from hicache_storage.tools.objects import ObjectReport

_URL = re.compile("[a-z0-9]+:/")
Root = Annotated[
    str | None,  # a Path would be looked at by typer, which may wait for a mount for ever
    typer.Argument(
        metavar="[DIRECTORY]",
        help="Directory of the store; else what --config names, objects included.",
    ),
]


def inspect(directory: Root = None, config: ConfigFile = None, as_json: AsJson = False) -> None:
    """Show a medium: namespaces, stores, pages, who holds them, damage."""
    from hicache_storage.tools.media import read_medium
    from hicache_storage.tools.objects import read_objects

    place = named(directory, config)
    if isinstance(place, Path):
        report = read_medium(place)
        print_json(report.to_json()) if as_json else _show(report)
    else:
        objects = read_objects(place)
        print_json(objects.to_json()) if as_json else show_objects(objects)


def named(directory: str | None, config: Path | None) -> Path | Config:
    """The directory that was meant, or the configuration of the objects. Raises ConfigError."""
    from hicache_storage.sglang.settings import file_config
    from hicache_storage.tools.clearing import roots_of
    from hicache_storage.tools.objects import is_objects

    if directory is not None:
        if _URL.match(directory):
            raise ConfigError(
                f"{directory} is no directory: write a URL as url in the section fsspec of a "
                "configuration, and name that with --config"
            )
        return Path(directory)
    loaded = file_config(config)
    if is_objects(loaded):
        return loaded
    roots = roots_of(loaded)
    if len(roots) != 1:
        raise ConfigError(f"name a directory{': one of ' * bool(roots)}{', '.join(roots)}")
    return Path(roots[0])


def show_objects(report: ObjectReport) -> None:
    """The namespaces on a medium of objects."""
    from hicache_backends.sizes import format_size

    foreign = f", {len(report.foreign):,} objects that are no pages" if report.foreign else ""
    typer.echo(f"{report.name}: pages as objects{foreign}")
    columns = ("fingerprint", "tenant", "model", "revision", "page", "pages", "bytes")
    rows = []
    for found in report.namespaces:
        known = found.namespace
        facts = (known.tenant, known.model, known.revision) if known else ("", "unreadable", "")
        page = format_size(known.page_bytes) if known else ""
        size = format_size(found.page_bytes)
        rows.append((found.fingerprint[:16], *facts, page, len(found.pages), size))
    if rows:
        print_table("", columns, rows)


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
