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
    """Show what processes counted since a namespace was first seen, the gone ones included.

    There of looked up: pages that were stored, of those that engines asked about. Hits of asked
    for: pages that were read, of those that they wanted to read then. What is not there is seldom
    asked for, so that the first is what the cache is worth.
    """
    with asking(endpoint, token_file) as service:
        found = service.every("/v1/stats", "sums", by=by.value)
    if as_json:
        print_json(found)
    elif counters:
        rows = [(s["name"], name, n) for s in found for name, n in s["counters"].items()]
        print_table("", (by.value, "counter", "count"), rows)
    else:
        columns = (by.value, "pages", "size", "there of looked up", "hits of asked for")
        more = ("read", "written", "stored", "refused", "evicted", "missed because")
        print_table("", (*columns, *more), [_row(s) for s in found])


def _row(each: dict[str, Any]) -> tuple[object, ...]:
    counts: dict[str, int] = each["counters"]
    looked, there = counts.get("exists.pages", 0), counts.get("exists.found", 0)
    asked, hits = counts.get("get.pages", 0), counts.get("get.hits", 0)
    evicted, refused = _sum(counts, "evicted."), _sum(counts, "refused.")
    misses = {n: v for n, v in counts.items() if n.startswith("miss.")}
    reasons = sorted(misses, key=lambda name: -misses[name])
    return (
        each["name"],
        each["pages"],
        size(each["bytes"]),
        _part(there, looked),
        _part(hits, asked),
        size(counts.get("get.bytes", 0)),
        size(counts.get("put.bytes", 0)),
        counts.get("put.stored", 0),
        refused,
        evicted,
        [f"{name.removeprefix('miss.')} {misses[name]:,}" for name in reasons],
    )


def _part(some: int, whole: int) -> str | None:
    return f"{some:,} of {whole:,}: {100 * some / whole:.4g} %" if whole else None


def _sum(counts: dict[str, int], prefix: str) -> int:
    return sum(n for name, n in counts.items() if name.startswith(prefix))
