"""Options that commands have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvmanager.cli.output import AsJson

__all__ = ["HERE", "AsJson", "Endpoint", "NamespaceId", "TenantName", "TokenFile"]

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
NamespaceId = Annotated[str, typer.Argument(help="Id of a namespace, as `namespaces` lists it.")]
