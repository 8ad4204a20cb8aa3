"""Where the service is: one address or several, and which of them to try first."""

from __future__ import annotations

import os
import re
import ssl
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from urllib.parse import urlsplit

from hicache_backends.errors import ConfigError
from kvmanager.endpoint import redacted, warn_of_clear_token

SCHEMES = ("http://", "https://")
TOKEN, TOKEN_FILE = "KVMANAGER_TOKEN", "KVMANAGER_TOKEN_FILE"  # names of variables
_FORM = "http://host:port or https://host:port, several separated by commas"
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Address:
    """One manager, or a name behind which there are several."""

    host: str
    port: int
    tls: bool

    @property
    def shown(self) -> str:
        """As a URL."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.tls else 'http'}://{host}:{self.port}"


@dataclass
class HttpEndpoint:
    """All addresses of the service. Printing it shows no secret.

    Requests go to the first address until that fails; then the next is the first. Managers hold
    nothing that another one lacks.
    """

    addresses: tuple[Address, ...]
    token: str | None = field(default=None, repr=False)
    _first: int = 0

    @classmethod
    def parse(cls, urls: str, token: str | None = None) -> HttpEndpoint:
        """`token`: the bearer token; None: the one that KVMANAGER_TOKEN holds, or the file that
        KVMANAGER_TOKEN_FILE names. Raises ConfigError."""
        addresses = tuple(_address(url.strip()) for url in urls.split(","))
        token = token or _token_of_environment()
        if token is not None and not re.fullmatch(r"[!-~]+", token):
            raise ConfigError("the registry's token must be printable ASCII without blanks")
        for address in addresses:
            if token is not None and not address.tls:
                warn_of_clear_token(address.host, address.shown)
        # processes begin at different ones, so that all managers have work
        return cls(addresses, token, os.getpid() % len(addresses))

    @property
    def shown(self) -> str:
        """The addresses as they are written."""
        return ",".join(address.shown for address in self.addresses)

    @property
    def first(self) -> Address:
        """The one to try now."""
        return self.addresses[self._first]

    @cached_property
    def tls(self) -> ssl.SSLContext:
        """With the system's authorities, or those of SSL_CERT_FILE."""
        return ssl.create_default_context()

    def failed(self, address: Address) -> None:
        """This one did not answer: others come before it."""
        if self.first is address:
            self._first = (self._first + 1) % len(self.addresses)

    def headers(self, address: Address) -> bytes:
        """The lines that belong into each request there."""
        host = address.shown.partition("://")[2]
        lines = [f"host: {host}"]
        if self.token is not None:
            lines.append(f"authorization: Bearer {self.token}")
        return "".join(f"{line}\r\n" for line in lines).encode()

    def __iter__(self) -> Iterator[Address]:
        """All of them, the first one first."""
        first = self._first
        return iter((*self.addresses[first:], *self.addresses[:first]))


def _address(url: str) -> Address:
    shown = redacted(url)
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ConfigError(f"endpoint {shown}: not a URL; use {_FORM}") from None
    if parts.scheme not in _PORTS or not parts.hostname:
        raise ConfigError(f"endpoint {shown}: use {_FORM}")
    if "@" in parts.netloc:
        raise ConfigError(
            f"endpoint {shown}: a token goes into {TOKEN}, or into a file named by {TOKEN_FILE}"
        )
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        raise ConfigError(f"endpoint {shown}: nothing follows the port; use {_FORM}")
    if not parts.hostname.isascii() or re.search(r"[\s\x00-\x1f]", parts.hostname):
        raise ConfigError(f"endpoint {shown}: the host is no name or address; use {_FORM}")
    return Address(parts.hostname, port or _PORTS[parts.scheme], parts.scheme == "https")


def _token_of_environment() -> str | None:
    path = os.environ.get(TOKEN_FILE)
    if not path:
        return os.environ.get(TOKEN) or None
    try:
        return Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{TOKEN_FILE}: the token cannot be read: {error}") from None
