"""`kvmanager stats`: what processes counted."""

from __future__ import annotations

from enum import Enum
from typing import Annotated, Any

import typer

from kvmanager.cli.caller import asking
from kvmanager.cli.options import HERE, AsJson, Endpoint, TokenFile
from kvmanager.cli.output import print_json, print_table
from kvmanager.cli.units import size


class By(str, Enum):
    """What a row is of."""

    TENANT = "tenant"
    NAMESPACE = "namespace"


def stats(
    by: Annotated[By, typer.Option(help="A row for each.")] = By.TENANT,
    counters: Annotated[
        bool, typer.Option("--counters", help="All that was counted, one a line.")
    ] = False,
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show what processes counted since a namespace was first seen, the gone ones included."""
    with asking(endpoint, token_file) as service:
        found = service.every("/v1/stats", "sums", by=by.value)
    if as_json:
        print_json(found)
    elif counters:
        rows = [(s["name"], name, n) for s in found for name, n in s["counters"].items()]
        print_table("", (by.value, "counter", "count"), rows)
    else:
        columns = (by.value, "pages", "size", "asked for", "hit", "hit %", "read", "written")
        print_table("", (*columns, "stored", "evicted", "missed because"), [_row(s) for s in found])


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    counts: dict[str, int] = each["counters"]
    asked, hits = counts.get("get.pages", 0), counts.get("get.hits", 0)
    evicted = sum(n for name, n in counts.items() if name.startswith("evicted."))
    misses = {n: v for n, v in counts.items() if n.startswith("miss.")}
    reasons = sorted(misses, key=lambda name: -misses[name])
    return (
        each["name"],
        each["pages"],
        size(each["bytes"]),
        asked,
        hits,
        100 * hits / asked if asked else None,
        size(counts.get("get.bytes", 0)),
        size(counts.get("put.bytes", 0)),
        counts.get("put.stored", 0),
        evicted,
        [f"{name.removeprefix('miss.')} {misses[name]:,}" for name in reasons],
    )
