"""`kvmanager processes`, `servers`, `hosts`, `stores`, `media`: who there is, where pages lie."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from kvmanager.cli.caller import asking
from kvmanager.cli.options import HERE, AsJson, Endpoint, TokenFile
from kvmanager.cli.output import print_json, print_table
from kvmanager.cli.units import moment, size

Row = Sequence[object]


def processes(
    host: Annotated[str | None, typer.Option(help="Only those of this host.")] = None,
    server: Annotated[str | None, typer.Option(help="Only those of this server.")] = None,
    alive: Annotated[
        bool | None, typer.Option("--alive/--gone", help="Only those that are there, or are gone.")
    ] = None,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List processes, with the mode that each is in and what it last reported."""
    with asking(endpoint, token_file) as service:
        said = None if alive is None else str(alive).lower()
        found = service.every("/v1/processes", "processes", host=host, server=server, alive=said)
    columns = ("process", "host", "server", "rank", "alive", "seen", "mode", "tenant", "namespace")
    _show(found, (*columns, "pages", "size", "breaker", "version"), _process, as_json=as_json)


def servers(
    endpoint: Endpoint = HERE, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List servers: processes that answer requests together."""
    _groups("servers", ("server", "on hosts"), "hosts", endpoint, token_file, as_json=as_json)


def hosts(endpoint: Endpoint = HERE, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List hosts, with the processes of each."""
    _groups("hosts", ("host", "servers"), "servers", endpoint, token_file, as_json=as_json)


def stores(
    endpoint: Endpoint = HERE, token_file: TokenFile = None, as_json: AsJson = False
) -> None:
    """List stores: the pages of one process on one medium."""
    with asking(endpoint, token_file) as service:
        found = service.every("/v1/stores", "stores")
    columns = ("store", "process", "namespace", "medium", "alive", "seen", "pages", "size", "of")
    _show(found, columns, _store, as_json=as_json)


def media(endpoint: Endpoint = HERE, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """List media: directories, file systems and clusters that pages lie on."""
    with asking(endpoint, token_file) as service:
        found = service.every("/v1/media", "media")
    columns = ("medium", "shared", "namespaces", "pages", "size", "seen")
    _show(found, columns, _medium, as_json=as_json)


def _groups(
    kind: str,
    names: tuple[str, str],
    others: str,
    endpoint: str,
    token_file: Path | None,
    *,
    as_json: bool,
) -> None:
    def row(group: dict[str, Any]) -> Row:
        known = (group["name"], group[others], len(group["ranks"]), group["processes"])
        return (
            *known,
            group["alive"],
            moment(group["seen_s"]),
            group["pages"],
            size(group["bytes"]),
        )

    with asking(endpoint, token_file) as service:
        found = service.every(f"/v1/{kind}", kind)
    columns = (*names, "ranks", "processes", "alive", "seen", "pages", "size")
    _show(found, columns, row, as_json=as_json)


def _show(
    found: list[dict[str, Any]],
    columns: Sequence[str],
    row: Callable[[dict[str, Any]], Row],
    *,
    as_json: bool,
) -> None:
    if as_json:
        print_json(found)
    else:
        print_table("", columns, [row(each) for each in found])


def _process(each: dict[str, Any]) -> Row:
    mode = each["mode"] or ""
    if each["ordered"] and each["ordered"] != mode:
        mode = f"{mode} (ordered: {each['ordered']})".lstrip()
    names = (each["process"], each["host"], each["server"], each["rank"], each["alive"])
    place = (moment(each["seen_s"]), mode, each["tenant"], each["namespace"])
    breaker = "hung" if each["hung"] else each["breaker"]
    return (*names, *place, each["pages"], size(each["bytes"]), breaker, each["version"])


def _store(each: dict[str, Any]) -> Row:
    names = (each["store"], each["process"], each["namespace"], each["medium"], each["alive"])
    sizes = (each["pages"], size(each["bytes"]), size(each["capacity_bytes"]))
    return (*names, moment(each["seen_s"]), *sizes)


def _medium(each: dict[str, Any]) -> Row:
    known = (each["medium"], each["shared"], len(each["namespaces"]))
    return (*known, each["pages"], size(each["bytes"]), moment(each["seen_s"]))
