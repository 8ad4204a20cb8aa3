"""The service as a process: where it listens, and how it ends."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import socket
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from hicache_backends.errors import ConfigError
from kvmanager.embedded import EmbeddedValkey
from kvmanager.service.access import Access, FileAccess, host_of, is_loopback
from kvmanager.service.app import make_app
from kvmanager.service.backing import Backing
from kvmanager.service.loops.loop import USUAL, LoopOptions
from kvmanager.service.protocol import Protocol
from kvmanager.service.tracing import Traced

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider

KEEP_ALIVE_S = 75
"""Longer than a client lets a connection rest, so that it is the client that closes."""
GRACE_S = 10
"""Requests under way have this long to end."""
MAX_CONNECTIONS = 4096

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Address:
    """Where the service listens."""

    host: str
    port: int

    @classmethod
    def parse(cls, written: str) -> Address:
        """HOST:PORT, [IPV6]:PORT or :PORT of this machine. Raises ConfigError."""
        before, colon, port = written.rpartition(":")
        host = host_of(written) if before else "127.0.0.1"
        unbracketed = ":" in before and not before.startswith("[")
        if not colon or unbracketed or not (port.isascii() and port.isdigit()):
            raise ConfigError(f"--listen is HOST:PORT or [IPV6]:PORT, not {written!r}")
        if int(port) > 65_535:
            raise ConfigError(f"--listen {written}: a port is at most 65535")
        return cls(host, int(port))

    def allowed_for(self, access: Access) -> None:
        """Raises ConfigError for an address that others reach while no token is asked for."""
        if access.open and not is_loopback(self.host):
            raise ConfigError(
                f"--listen {self.host}: others reach this address, so tokens are needed: make "
                "one with 'kvmanager token', and name its file with --tokens"
            )


@dataclass(frozen=True)
class Certificate:
    """What makes the service speak TLS: files in PEM."""

    chain: Path
    key: Path

    def check(self) -> None:
        """Raises ConfigError for files that make none."""
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.chain, self.key)
        except OSError as error:  # SSLError is one
            said = error.strerror if error.errno and error.strerror else str(error)
            raise ConfigError(
                f"--tls-cert {self.chain} and --tls-key {self.key} are no certificate (PEM) and "
                f"its private key: {said}"
            ) from None


def serve(
    redis: str,
    address: Address,
    access: Access,
    certificate: Certificate | None = None,
    embedded_dir: Path | None = None,
    spans: TracerProvider | None = None,
    loops: LoopOptions | None = USUAL,
) -> None:
    """Serve until SIGTERM or SIGINT; requests under way are answered first.

    `redis`: a URL, or `embedded` for a server in `embedded_dir`. `spans`: takes one of each
    request. `loops`: None for a service that only answers. Raises ConfigError.
    """
    address.allowed_for(access)
    if certificate is not None:
        certificate.check()
    if redis != "embedded":
        _run(Backing(redis), address, access, certificate, spans, loops)
        return
    if embedded_dir is None:
        raise ConfigError("--redis embedded needs a directory: --embedded-dir")
    with EmbeddedValkey.acquire(embedded_dir) as server:
        _run(Backing(server.url), address, access, certificate, spans, loops)


def _run(
    backing: Backing,
    address: Address,
    access: Access,
    certificate: Certificate | None,
    spans: TracerProvider | None,
    loops: LoopOptions | None,
) -> None:
    app = make_app(backing, access, loops)
    config = uvicorn.Config(
        Traced(app, spans) if spans else app,
        host=address.host,
        port=address.port,
        http=Protocol,
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        limit_concurrency=MAX_CONNECTIONS,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        ssl_certfile=certificate.chain if certificate else None,
        ssl_keyfile=certificate.key if certificate else None,
    )
    listener = _listen(address)
    scheme = "https" if certificate else "http"
    _log.info(
        "serving %s on %s://%s:%d", backing.shown, scheme, address.host, listener.getsockname()[1]
    )
    for ending in (signal.SIGTERM, signal.SIGINT):
        signal.signal(
            ending, lambda *_: None
        )  # uvicorn has its own, and raises it again at the end
    gc.collect()
    gc.freeze()  # what the libraries made is never looked through again
    reread = access.read if isinstance(access, FileAccess) else None
    _Server(config, app.end, reread).run(sockets=[listener])


class _Server(uvicorn.Server):
    """Waits for requests under way; those that have no end of their own are ended first."""

    def __init__(
        self, config: uvicorn.Config, end: Callable[[], None], reread: Callable[[], None] | None
    ) -> None:
        """`reread`: called at SIGHUP, which ends a service that has nothing to read again."""
        super().__init__(config)
        self._end = end
        self._reread = reread

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        if self._reread:
            asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reread)
        await super().startup(sockets)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._end()
        await super().shutdown(sockets)


def _listen(address: Address) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server(
            (address.host, address.port), family=family, backlog=1024, reuse_port=False
        )
    except OSError as error:
        raise ConfigError(f"--listen {address.host}:{address.port}: {error}") from None
