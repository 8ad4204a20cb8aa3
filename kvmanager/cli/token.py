"""`kvmanager token`: a token for a node, a router or an operator."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hicache_backends.errors import ConfigError


class TokenRole(str, Enum):
    """As `service.access.Role`, which is not imported for the help alone."""

    NODE = "node"
    ROUTER = "router"
    ADMIN = "admin"


def token(
    role: Annotated[TokenRole, typer.Option(help="What its holder is.")],
    tenant: Annotated[
        list[str], typer.Option(help="For whose pages; again for more; '*' for all.")
    ],
    save: Annotated[
        Path | None, typer.Option(help="Write it into this new file, and do not show it.")
    ] = None,
    tokens: Annotated[
        Path | None, typer.Option(help="Add its line to this file, that of the service's --tokens.")
    ] = None,
) -> None:
    """Make a token.

    It is kept nowhere: give it to its holder, and the line to the service, which knows the token by
    its hash alone.
    """
    from kvmanager.service.access import Role, new_token, token_line

    made = new_token()
    line = token_line(Role(role.value), tenant, made)
    if save is not None:
        _write(save, made, os.O_EXCL)
    try:
        if tokens is not None:
            _write(tokens, line, os.O_APPEND)
    except ConfigError:
        if save is not None:
            save.unlink()  # no service knows it
        raise
    if save is None:
        typer.echo(f"token: {made}")
    if tokens is None:
        typer.echo(f"line for the service's --tokens file: {line}")


def _write(path: Path, text: str, how: int) -> None:
    """Add a line to a file that only its owner reads. Raises ConfigError."""
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | how, 0o600), "w") as file:
            file.write(f"{text}\n")
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
