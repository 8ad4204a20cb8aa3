"""`kvmanager explain`: where pages are, or why they would be missed."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from kvmanager.cli.caller import asking
from kvmanager.cli.locate import Hashes, HashesFile, given, hashes_of
from kvmanager.cli.options import HERE, AsJson, Endpoint, NamespaceId, TokenFile
from kvmanager.cli.output import print_json, print_table
from kvmanager.cli.units import moment

PAGES_AT_ONCE = 256


def explain(
    namespace: NamespaceId,
    hashes: Hashes = None,
    file: HashesFile = None,
    medium: Annotated[
        list[str] | None,
        typer.Option(help="As a process that reaches this medium sees it; again for more."),
    ] = None,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Say for each page where it is, or why a process that asked for it would miss it."""
    pages = hashes_of(hashes, file)
    found: list[dict[str, Any]] = []
    with asking(endpoint, token_file) as service:
        for start in range(0, len(pages), PAGES_AT_ONCE):
            some = pages[start : start + PAGES_AT_ONCE]
            asked = {"namespace": namespace, "hashes": some, "media": medium or None}
            found += service.call("POST", "/v1/explain", given(asked))["pages"]
    if as_json:
        named = [{"hash": page, **each} for page, each in zip(pages, found, strict=True)]
        print_json(named)
    else:
        columns = ("page", "digest", "missed because", "detail", "copies", "pinned until")
        print_table("", columns, [_row(*pair) for pair in zip(pages, found, strict=True)])


def _row(page: str, each: dict[str, Any]) -> tuple[object, ...]:
    copies = [_copy(copy) for copy in each["copies"]]
    known = (each["digest"], each["reason"], each["detail"], copies)
    return (page, *known, moment(each["pinned_until_s"]))


def _copy(copy: dict[str, Any]) -> str:
    where = f"{copy['server'] or 'unknown'} on {copy['host'] or 'unknown'}"
    state = "" if copy["alive"] else ", gone"
    return f"{where} (medium {copy['medium'][:8]}{state})"
