"""`hicache-storage namespaces`: whose pages lie on a medium, and taking old ones away."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicache_backends.errors import ConfigError
from hicache_storage.cli.config import ConfigFile
from hicache_storage.cli.inspect import Root, named, show_objects
from hicache_storage.cli.output import AsJson, print_json, print_table
from kvmanager.cli.units import seconds as seconds

if TYPE_CHECKING:
    from hicache_storage.tools.clearing import Removed

app = typer.Typer(no_args_is_help=True, help="List the namespaces in a directory, prune old ones.")


@app.command("list")
def list_namespaces(
    directory: Root = None, config: ConfigFile = None, as_json: AsJson = False
) -> None:
    """List the namespaces on a medium."""
    from hicache_backends.sizes import format_size
    from hicache_storage.tools.media import read_medium
    from hicache_storage.tools.objects import read_objects

    place = named(directory, config)
    if not isinstance(place, Path):
        objects = read_objects(place)
        if as_json:
            print_json([each.to_json() for each in objects.namespaces])
        else:
            show_objects(objects)
        return
    found = read_medium(place).namespaces
    if as_json:
        print_json([{**dataclasses.asdict(n), "pages": n.pages, "in_use": n.in_use} for n in found])
        return
    columns = ("fingerprint", "tenant", "model", "revision", "page", "pages", "files", "in use")
    rows = []
    for report in found:
        known = report.namespace
        facts = (known.tenant, known.model, known.revision) if known else ("", "unreadable", "")
        page = format_size(known.page_bytes) if known else ""
        size = format_size(report.file_bytes)
        rows.append((report.fingerprint[:16], *facts, page, report.pages, size, report.in_use))
    print_table("", columns, rows)


@app.command("prune")
def prune_namespaces(
    directory: Root = None,
    unused_for: Annotated[
        str | None, typer.Option(help="Only stores unused for this long: 30m, 12h, 7d.")
    ] = None,
    namespace: Annotated[
        str | None, typer.Option(help="Only this one: first digits of its fingerprint, or a model.")
    ] = None,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    everything: Annotated[bool, typer.Option("--all", help="Whatever is not in use.")] = False,
    config: ConfigFile = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, only tell.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete stores that no process has open. Of objects nobody knows that: see `clear`."""
    from hicache_storage.tools.clearing import prune, selected

    if not everything and unused_for is namespace is tenant is None:
        raise ConfigError("say what to prune: --unused-for, --namespace, --tenant, or --all")
    place = named(directory, config)
    if not isinstance(place, Path):
        raise ConfigError(
            "objects don't say who uses them, or since when: `hicache-storage clear` removes a "
            "tenant's or a namespace's all the same; by age a lifecycle rule of the bucket does"
        )
    wanted = selected(tenant, namespace)
    results = prune(
        str(place),
        lambda report: wanted(report.fingerprint, report.namespace),
        idle_s=seconds(unused_for, "--unused-for") if unused_for else 0,
        dry_run=dry_run,
    )
    if as_json:
        print_json({"dry_run": dry_run, "stores": [dataclasses.asdict(r) for r in results]})
    else:
        show_removed(results, dry_run=dry_run)


def show_removed(results: list[Removed], *, dry_run: bool) -> None:
    """What was, or would be, deleted."""
    from hicache_backends.sizes import format_size

    columns = ("namespace", "store", "pages", "files", "")
    done = "would go" if dry_run else "deleted"
    rows = [
        (
            r.fingerprint[:16],
            r.store[:16],
            r.pages,
            format_size(r.file_bytes),
            done if r.removed else f"kept: {r.why_not}",
        )
        for r in results
    ]
    if rows:
        print_table("", columns, rows)
    freed = sum(r.file_bytes for r in results if r.removed)
    typer.echo(f"{done}: {format_size(freed)}")
