"""The command `kvmanager`."""

from __future__ import annotations

import sys
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hicache_backends.errors import HiCacheError, MissingExtra

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="The registry's service: which process holds which page of KV cache.",
)


class LogFormat(str, Enum):
    """How a line of the log looks."""

    TEXT = "text"
    JSON = "json"


class LogLevel(str, Enum):
    """The least of what is logged."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class TokenRole(str, Enum):
    """As `service.access.Role`, which is not imported for the help alone."""

    NODE = "node"
    ROUTER = "router"
    ADMIN = "admin"


@app.command()
def serve(
    redis: Annotated[
        str,
        typer.Option(
            envvar="KVMANAGER_REDIS",
            show_envvar=True,
            help="redis://, rediss:// or unix:// URL, or 'embedded'. A password belongs into the "
            "environment variable, since others see a command line.",
        ),
    ] = "redis://127.0.0.1:6379",
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = (
        "127.0.0.1:8080"
    ),
    tokens: Annotated[
        Path | None,
        typer.Option(
            envvar="KVMANAGER_TOKENS_FILE",
            show_envvar=True,
            help="File of tokens, a line each; KVMANAGER_TOKENS may hold such lines, too.",
        ),
    ] = None,
    embedded_dir: Annotated[
        Path | None, typer.Option(help="Directory of the embedded Valkey.")
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="Its private key, PEM.")] = None,
    log_format: Annotated[LogFormat, typer.Option(help="Lines for people, or JSON.")] = (
        LogFormat.TEXT
    ),
    log_level: Annotated[LogLevel, typer.Option(help="The least of what is logged.")] = (
        LogLevel.INFO
    ),
) -> None:
    """Answer the registry's calls over HTTP, for any number of processes. Stateless: start as many
    as you like over one Redis, and name them all in the clients' endpoint."""
    import os

    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key go together")
    _need_service()
    from kvmanager.service import access, logs, serving

    logs.start_logging(log_format is LogFormat.JSON, log_level.value)
    certificate = serving.Certificate(tls_cert, tls_key) if tls_cert and tls_key else None
    serving.serve(
        redis,
        serving.Address.parse(listen),
        access.read_tokens(tokens, os.environ.get("KVMANAGER_TOKENS", "")),
        certificate,
        embedded_dir,
    )


@app.command()
def token(
    role: Annotated[TokenRole, typer.Option(help="What its holder is.")],
    tenant: Annotated[
        list[str], typer.Option(help="For whose pages; again for more; '*' for all.")
    ],
) -> None:
    """Make a token. It is shown once: give it to its holder, and the line to the service."""
    from kvmanager.service.access import Role, new_token, token_line

    made = new_token()
    line = token_line(Role(role.value), tenant, made)
    typer.echo(f"token: {made}")
    typer.echo(f"line for the service's --tokens file: {line}")


def _need_service() -> None:
    """Raises MissingExtra where the service's libraries are not installed."""
    try:
        import fastapi
        import uvicorn

        _ = fastapi, uvicorn
    except ImportError:
        raise MissingExtra("kvmanager serve", "kvmanager") from None


def main() -> None:
    """The entry point: errors that a person can mend are one line, and the exit status 2."""
    try:
        app()
    except HiCacheError as error:
        typer.echo(f"kvmanager: {error}", err=True)
        sys.exit(2)


if __name__ == "__main__":
    main()
