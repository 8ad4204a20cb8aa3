"""`hicache-storage clear`: void the pages of a tenant or a namespace everywhere."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from hicache_storage.cli.config import ConfigFile
from hicache_storage.cli.namespaces import show_removed
from hicache_storage.cli.output import AsJson, print_json


def clear(
    tenant: Annotated[str, typer.Option(help="Whose pages.")],
    config: ConfigFile = None,
    namespace: Annotated[
        str | None, typer.Option(help="Only this one: first digits of its fingerprint, or a model.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Clear nothing, only tell.")] = False,
    as_json: AsJson = False,
) -> None:
    """Clear namespaces: in the registry for everybody, on this machine's media what nobody uses,
    as objects all.

    Processes that have such a namespace open drop their pages at their next heartbeat.
    """
    from hicache_storage.sglang.settings import file_config
    from hicache_storage.tools import clearing

    loaded = file_config(config)
    roots = clearing.roots_of(loaded)
    wanted = clearing.selected(tenant, namespace)
    chosen = [
        found
        for found in clearing.namespaces_of(loaded, roots)
        if wanted(found.fingerprint.hex(), found)
    ]
    epochs = {}
    if loaded.global_kvmanager.enabled and not dry_run:
        epochs = clearing.raise_epochs(loaded, chosen)
    removed = [
        result
        for root in roots
        for result in clearing.prune(
            root, lambda report: wanted(report.fingerprint, report.namespace), dry_run=dry_run
        )
    ]
    removed += clearing.clear_objects(loaded, wanted, dry_run=dry_run)
    if as_json:
        print_json(
            {
                "dry_run": dry_run,
                "namespaces": [found.fingerprint.hex() for found in chosen],
                "epochs": epochs,
                "stores": [dataclasses.asdict(result) for result in removed],
            }
        )
        return
    for found in chosen:
        name = found.fingerprint.hex()
        epoch = f"epoch {epochs[name]} in the registry" if name in epochs else "not in a registry"
        typer.echo(f"{name[:16]}: {found.model} {found.revision}, {epoch}")
    if not chosen:
        typer.echo("no such namespace is known here")
    show_removed(removed, dry_run=dry_run)
