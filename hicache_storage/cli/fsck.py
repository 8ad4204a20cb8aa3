"""`hicache-storage fsck`: look directories through, mend what may be mended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hicache_backends.errors import ConfigError
from hicache_storage.cli.config import ConfigFile
from hicache_storage.cli.namespaces import seconds
from hicache_storage.cli.output import AsJson, print_json, print_table

if TYPE_CHECKING:
    from hicache_storage.config import Config
    from hicache_storage.tools.fsck import LeftStore, Orders, RootCheck


def fsck(
    directories: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[PATH]...", help="Directories; else those of the configuration."),
    ] = None,
    config: ConfigFile = None,
    repair: Annotated[
        bool,
        typer.Option(
            "--repair",
            help="Delete unfinished files and halves of segments, and empty damaged records, in "
            "stores that nobody uses.",
        ),
    ] = False,
    delete_left: Annotated[
        bool, typer.Option("--delete-left", help="Delete stores whose process is gone.")
    ] = False,
    idle: Annotated[
        str, typer.Option(help="With --delete-left: only those unused for so long: 30m, 12h, 7d.")
    ] = "1h",
    as_json: AsJson = False,
) -> None:
    """Look through what lies in the directories and say what is wrong; 1 if that is anything.

    A store that is in use is never touched.
    """
    from hicache_storage.tools.fsck import Orders

    if not directories and (loaded := _of_objects(config)):
        _fsck_objects(loaded, repair=repair, delete_left=delete_left, as_json=as_json)
        return
    orders = Orders(repair, delete_left, seconds(idle, "--idle"))
    checks = [_checked(path, orders) for path in _paths(directories, config)]
    ok = all(check.ok for check in checks)
    if as_json:
        print_json({"ok": ok, "roots": [check.to_json() for check in checks]})
    else:
        for check in checks:
            _show(check)
    if not ok:
        raise typer.Exit(1)


def _of_objects(config: Path | None) -> Config | None:
    """The configuration, if it keeps pages as objects."""
    from hicache_storage.sglang.settings import file_config
    from hicache_storage.tools.objects import is_objects

    loaded = file_config(config)
    return loaded if is_objects(loaded) else None


def _fsck_objects(config: Config, *, repair: bool, delete_left: bool, as_json: bool) -> None:
    from hicache_backends.sizes import format_size
    from hicache_storage.tools.fsck_objects import check_objects
    from hicache_storage.tools.objects import object_medium

    if delete_left:
        raise ConfigError("--delete-left: objects belong to no process; see `clear`")
    with object_medium(config) as medium:
        check = check_objects(medium, repair=repair)
    if as_json:
        print_json({"ok": check.ok, "roots": [check.to_json()]})
    else:
        size = format_size(check.page_bytes)
        typer.echo(f"{check.root}: objects, {check.pages:,} pages of {size} read")
        rows = [(len(keys), name, keys[0]) for name, keys in check.troubles() if keys]
        if rows:
            print_table("", ("found", "what", "such as"), rows)
        if check.removed:
            typer.echo(f"removed: {check.removed:,} wrong pages")
        typer.echo("clean" if check.ok else "not clean")
    if not check.ok:
        raise typer.Exit(1)


def _paths(directories: list[Path] | None, config: Path | None) -> list[str]:
    if directories:
        return [str(path) for path in directories]
    from hicache_storage.sglang.settings import file_config
    from hicache_storage.tools.clearing import roots_of

    if found := roots_of(file_config(config)):
        return found
    raise ConfigError("no directory to look through: name one, or a configuration with --config")


def _checked(path: str, orders: Orders) -> RootCheck:
    from hicache_storage.cli.progress import counted
    from hicache_storage.tools.fsck import check_root, stores_in
    from hicache_storage.tools.roots import open_root

    root = open_root(path)
    stores = stores_in(root)
    with counted(path, len(stores)) as step:
        return check_root(root, stores, orders, step)


def _show(check: RootCheck) -> None:
    from hicache_backends.sizes import format_size

    typer.echo(
        f"{check.root}: {check.kind}, {check.stores:,} stores, {check.in_use:,} of them in use, "
        f"{check.pages:,} pages in {format_size(check.file_bytes)} of files"
    )
    if troubles := check.by_kind():
        rows = [(t["count"], t["mended"], t["what"], t["examples"]) for t in troubles]
        print_table("", ("found", "mended", "what", "such as"), rows)
    if check.left:
        left = [
            (_name(store), store.pages, format_size(store.file_bytes), store.idle_s, _fate(store))
            for store in check.left
        ]
        print_table("", ("store left behind", "pages", "files", "idle s", ""), left)
    typer.echo("clean" if check.ok else "not clean")


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
