"""`kvmanager events`: what happens in a namespace, as it happens."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from hicache_backends.errors import RegistryUnavailable
from kvmanager.cli.caller import asking
from kvmanager.cli.options import HERE, AsJson, Endpoint, NamespaceId, TokenFile

AGAIN_S = 1.0
"""A stream that ended is asked for again after so long."""


@dataclass(frozen=True)
class Event:
    """One of a stream of server-sent events."""

    kind: str
    sequence: str
    data: dict[str, Any]


def events(
    namespace: NamespaceId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on with what happens from now on.")
    ] = False,
    start: Annotated[
        str, typer.Option("--from", help="A sequence: what happened since; else all there is.")
    ] = "snapshot",
    endpoint: Endpoint = HERE,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Print pages as they are added and removed, processes as they come and go.

    First what there is, until `live`; with --follow what happens from then on, from where it
    stopped if the service goes away meanwhile.
    """
    sequence, told = start, False
    while True:
        try:
            with asking(endpoint, token_file) as service:
                lines = service.lines("/v1/events", **{"namespace": namespace, "from": sequence})
                for event in parsed(lines):
                    sequence, told = event.sequence or sequence, False
                    _show(event, as_json=as_json)
                    if event.kind == "live" and not follow:
                        return
            raise RegistryUnavailable("the service ended the stream")
        except RegistryUnavailable as gone:
            if not follow:
                raise
            if not told:  # an outage is said once, whatever it looks like meanwhile
                typer.echo(f"kvmanager: {gone}; trying again until it answers", err=True)
                told = True
            time.sleep(AGAIN_S)


def parsed(lines: Iterator[str]) -> Iterator[Event]:
    """The events that lines make; an empty line ends one, comments are passed over."""
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        if not line and "data" in fields:
            yield Event(
                fields.get("event", "message"), fields.get("id", ""), json.loads(fields["data"])
            )
        if not line:
            fields = {}
        elif colon and name:
            fields[name] = value.removeprefix(" ")


def _show(event: Event, *, as_json: bool) -> None:
    if as_json:
        document = {"event": event.kind, "sequence": event.sequence or None, **event.data}
        typer.echo(json.dumps(document))
    else:
        typer.echo(f"{event.sequence or '-'} {event.kind} {_words(event.data)}".rstrip())
    sys.stdout.flush()


def _words(data: dict[str, Any]) -> str:
    """Lists as how many they hold, all else as it is."""
    words = []
    for name, value in data.items():
        if name == "stores" and isinstance(value, dict):  # of a snapshot: digests by store
            name, value = "digests", [digest for some in value.values() for digest in some]
        words.append(f"{len(value)} {name}" if isinstance(value, list) else f"{name} {value}")
    return ", ".join(words)
