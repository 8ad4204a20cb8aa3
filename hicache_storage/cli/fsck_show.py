"""What fsck found, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer

from hicache_backends.sizes import format_size
from hicache_storage.cli.output import print_table
from hicache_storage.tools.fsck import LeftStore, RootCheck
from hicache_storage.tools.fsck_objects import ObjectCheck
from hicache_storage.tools.fsck_registry import RegistryCheck
from hicache_storage.tools.rebuild import Rebuilt


def show_all(checks: Sequence[RootCheck | ObjectCheck], registry: RegistryCheck | None) -> None:
    """Each medium, then the registry."""
    for check in checks:
        if isinstance(check, RootCheck):
            _show_root(check)
        else:
            _show_objects(check)
    if registry is not None:
        _show_registry(registry)


def show_rebuilt(done: Rebuilt) -> None:
    """What was made known."""
    typer.echo(
        f"{done.registry}: {done.pages:,} pages of {done.stores:,} stores in {done.namespaces:,} "
        f"namespaces; {len(done.in_use):,} stores are in use: their processes announce them"
    )
    if done.cleared:
        rows = [(path,) for path in done.cleared]
        print_table("", ("left out: from before their namespace was cleared",), rows)


def _show_root(check: RootCheck) -> None:
    typer.echo(
        f"{check.root}: {check.kind}, {check.stores:,} stores, {check.in_use:,} of them in use, "
        f"{check.pages:,} pages in {format_size(check.file_bytes)} of files"
    )
    _show_troubles(check.by_kind())
    if check.left:
        left = [
            (_name(store), store.pages, format_size(store.file_bytes), store.idle_s, _fate(store))
            for store in check.left
        ]
        print_table("", ("store left behind", "pages", "files", "idle s", ""), left)
    typer.echo("clean" if check.ok else "not clean")


def _show_objects(check: ObjectCheck) -> None:
    size = format_size(check.page_bytes)
    typer.echo(f"{check.root}: objects, {check.pages:,} pages of {size} read")
    rows = [(len(keys), name, keys[0]) for name, keys in check.troubles() if keys]
    if rows:
        print_table("", ("found", "what", "such as"), rows)
    if check.removed:
        typer.echo(f"removed: {check.removed:,} wrong pages")
    typer.echo("clean" if check.ok else "not clean")


def _show_registry(check: RegistryCheck) -> None:
    typer.echo(
        f"{check.registry}: {check.namespaces:,} namespaces, {check.entries:,} entries compared"
    )
    _show_troubles(check.by_kind())
    if check.announced:
        typer.echo(f"announced: {check.announced:,} pages of stores that nobody uses")
    for words, names in (
        ("media that were not there to compare with", check.unseen),
        ("stores in use by processes that this registry does not hear of", check.unjoined),
    ):
        if names:
            typer.echo(f"{len(names):,} {words}, such as {names[0]}")
    if check.full:
        typer.echo("there is more than one run looks at: run it again")
    typer.echo("clean" if check.ok else "not clean")


def _show_troubles(troubles: list[dict[str, Any]]) -> None:
    if troubles:
        rows = [(t["count"], t["mended"], t["what"], t["examples"]) for t in troubles]
        print_table("", ("found", "mended", "what", "such as"), rows)


def _name(store: LeftStore) -> str:
    """As `inspect` and `namespaces list` name namespace and store."""
    path = Path(store.path)
    return f"{path.parent.name[:16]}/{path.name[:16]}"


def _fate(store: LeftStore) -> str:
    if store.deleted:
        return "deleted"
    if store.why_kept:
        return f"kept: {store.why_kept}"
    return "adopted" if store.adopted else ""
