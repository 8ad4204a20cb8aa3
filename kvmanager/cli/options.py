"""Options that commands have in common."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from kvmanager.cli.caller import NotThere
from kvmanager.cli.output import AsJson

__all__ = [
    "HERE",
    "AsJson",
    "Endpoint",
    "NamespaceId",
    "TenantName",
    "TokenFile",
    "namespace_id",
    "process_uuid",
]

HERE = "http://127.0.0.1:8080"

Endpoint = Annotated[
    str,
    typer.Option(
        envvar="KVMANAGER_ENDPOINT",
        show_envvar=True,
        help="The service: http:// or https://host:port, several with commas between. Or a Redis "
        "itself, as for `serve`: then its answers are made here.",
    ),
]
TokenFile = Annotated[
    Path | None,
    typer.Option(
        envvar="KVMANAGER_TOKEN_FILE",
        show_envvar=True,
        help="File with the token for the service; KVMANAGER_TOKEN may hold it instead.",
    ),
]
TenantName = Annotated[str | None, typer.Option("--tenant", help="Of this tenant alone.")]


def namespace_id(given: str | None) -> str | None:
    """Of what a person wrote. Raises NotThere for what is the id of none."""
    if given is None or re.fullmatch("[0-9a-f]{18}", given):
        return given
    raise NotThere(f"no such namespace: {given!r}; `kvmanager namespaces list` has their ids")


def process_uuid(given: str | None) -> str | None:
    """The same for a process."""
    if given is None or re.fullmatch("[0-9a-f]{32}", given):
        return given
    raise NotThere(f"no such process: {given!r}; `kvmanager processes` has their uuids")


NamespaceId = Annotated[
    str,
    typer.Argument(callback=namespace_id, help="Id of a namespace, as `namespaces list` has it."),
]
