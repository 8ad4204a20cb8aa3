"""`kvmanager serve`: the service as a process."""

from __future__ import annotations

import os
from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from hicache_backends.errors import ConfigError
from kvmanager.cli.needs import need_service, read_secret


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


Redis = Annotated[
    str,
    typer.Option(
        envvar="KVMANAGER_REDIS",
        show_envvar=True,
        help="redis://, rediss:// or unix:// URL, those of Sentinels and Clusters, or 'embedded'. "
        "A password belongs into the environment variable or a file: others see a command line.",
    ),
]
RedisPasswordFile = Annotated[
    Path | None,
    typer.Option(
        envvar="KVMANAGER_REDIS_PASSWORD_FILE",
        show_envvar=True,
        help="File with the password of the URL's user.",
    ),
]
Tokens = Annotated[
    Path | None,
    typer.Option(
        envvar="KVMANAGER_TOKENS_FILE",
        show_envvar=True,
        help="File of tokens, a line each; KVMANAGER_TOKENS may hold such lines, too.",
    ),
]
Traces = Annotated[
    bool | None,
    typer.Option(
        "--traces/--no-traces",
        help="A span a request, by OpenTelemetry; unless said, where the environment variable "
        "OTEL_EXPORTER_OTLP_ENDPOINT is set.",
    ),
]
Loops = Annotated[
    bool,
    typer.Option("--loops/--no-loops", help="Sweep, settle quotas, and so on; or only answer."),
]


def serve(
    redis: Redis = "redis://127.0.0.1:6379",
    redis_password_file: RedisPasswordFile = None,
    listen: Annotated[str, typer.Option(help="HOST:PORT; port 0 takes a free one.")] = (
        "127.0.0.1:8080"
    ),
    tokens: Tokens = None,
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
    traces: Traces = None,
    loops: Loops = True,
    sweep_every: Annotated[
        float, typer.Option(min=0.1, help="Seconds between two sweeps of a namespace.")
    ] = 30.0,
    settle_every: Annotated[
        float, typer.Option(min=0.1, help="Seconds until a tenant's settings are in force.")
    ] = 5.0,
) -> None:
    """Answer the registry's calls over HTTP, for any number of processes.

    Stateless: start as many as you like over one Redis, and name them all in the clients' endpoint.
    """
    if (tls_cert is None) != (tls_key is None):
        raise typer.BadParameter("--tls-cert and --tls-key go together")
    need_service("kvmanager serve")
    from kvmanager.service import access, logs, serving, tracing
    from kvmanager.service.loops.loop import LoopOptions

    logs.start_logging(log_format is LogFormat.JSON, log_level.value)
    if traces is None:
        traces = tracing.wanted(os.environ)
    certificate = serving.Certificate(tls_cert, tls_key) if tls_cert and tls_key else None
    serving.serve(
        with_password(redis, redis_password_file),
        serving.Address.parse(listen),
        access.read_tokens(tokens, os.environ.get("KVMANAGER_TOKENS", "")),
        certificate,
        embedded_dir,
        tracing.provider() if traces else None,
        LoopOptions(sweep_every, settle_every) if loops else None,
    )


def with_password(url: str, file: Path | None) -> str:
    """The URL with the password that a file holds. Raises ConfigError."""
    from urllib.parse import quote, urlsplit, urlunsplit

    if file is None:
        return url
    parts = urlsplit(url)
    user, _, host = parts.netloc.rpartition("@")
    if ":" in user or not parts.netloc:
        raise ConfigError("--redis-password-file: --redis is a URL that holds no password itself")
    return urlunsplit(parts._replace(netloc=f"{user}:{quote(read_secret(file), safe='')}@{host}"))
