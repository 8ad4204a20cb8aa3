"""Who may ask what: bearer tokens, each with a role and the tenants that it is for.

Tokens are written one a line, in a file or an environment variable, as `ROLE TENANTS TOKEN`, or as
`ROLE TENANTS sha256:HEX` so that what lies there opens nothing. Tenants are separated by commas; *
is all of them. A line that begins with # is a remark. The file is read again when it changes.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from pathlib import Path

from hicache_backends.errors import ConfigError

EVERY_TENANT = "*"
MIN_TOKEN_CHARACTERS = 16
_HASHED = re.compile(r"sha256:([0-9a-f]{64})", re.ASCII)
_FORM = "ROLE TENANTS TOKEN, or ROLE TENANTS sha256:HEX"
LOOK_S = 1.0
"""A file of tokens is looked at this often while requests come."""

_log = logging.getLogger(__name__)


class Role(str, Enum):
    """What the holder of a token is."""

    NODE = "node"  # a process that stores pages
    ROUTER = "router"  # sends requests to where their pages are
    ADMIN = "admin"  # a person or a tool that operates the system


class Unknown(Exception):
    """The request shows no token, or one that nobody has given out."""


class Forbidden(Exception):
    """The token is not for this call or this tenant."""


@dataclass(frozen=True, slots=True)
class Grant:
    """What one token allows."""

    role: Role
    tenants: frozenset[str]
    digest: bytes = field(repr=False, default=b"")  # SHA-256 of the token

    def check(self, roles: Iterable[Role]) -> None:
        """Raises Forbidden for a call that is not among its role's."""
        if self.role not in roles:
            raise Forbidden(f"a token of the role {self.role.value} is not for this call")

    def check_tenant(self, tenant: str) -> None:
        """Raises Forbidden for another's tenant, which is not named."""
        if EVERY_TENANT not in self.tenants and tenant not in self.tenants:
            raise Forbidden("the token is not for this tenant")


ANYONE = Grant(Role.ADMIN, frozenset({EVERY_TENANT}))
"""Of a service without tokens, which listens on this machine alone."""


class Access:
    """The tokens of a service."""

    def __init__(self, grants: Iterable[Grant] = ()) -> None:
        self._grants = tuple(grants)

    @property
    def open(self) -> bool:
        """Whether no token is asked for."""
        return not self._grants

    def grant(self, authorization: str, host: str) -> Grant:
        """What the request's header allows. Raises Unknown, Forbidden.

        Without tokens the request must have been meant for this machine: a browser here can be
        led to send others, by a name that resolves to it.
        """
        if self.open:
            if not is_loopback(host_of(host)):
                raise Forbidden("a service without tokens answers to loopback names alone")
            return ANYONE
        kind, _, token = authorization.partition(" ")
        shown = hashlib.sha256(token.strip().encode("utf-8", "surrogateescape")).digest()
        found = None
        for grant in self._grants:  # all of them, so that the time says nothing
            if hmac.compare_digest(grant.digest, shown):
                found = grant
        if found is None or kind.lower() != "bearer":
            raise Unknown
        return found


class FileAccess(Access):
    """Tokens of a file, as it is now: a line that is added opens, one that is gone closes."""

    def __init__(self, path: Path, others: Iterable[Grant] = ()) -> None:
        """`others`: tokens from elsewhere. Raises ConfigError."""
        self._path = path
        self._others = tuple(others)
        self._stamp = _stamp(path)
        self._look_again_s = time.monotonic() + LOOK_S
        super().__init__((*self._others, *_of_file(path)))

    def grant(self, authorization: str, host: str) -> Grant:
        """As `Access.grant`."""
        now_s = time.monotonic()
        if now_s >= self._look_again_s:
            self._look_again_s = now_s + LOOK_S
            if _stamp(self._path) != self._stamp:
                self.read()
        return super().grant(authorization, host)

    def read(self) -> None:
        """Read the file now. One that cannot be taken is logged, and changes nothing."""
        self._stamp = _stamp(self._path)
        try:
            self._grants = (*self._others, *_of_file(self._path))
        except ConfigError as error:
            _log.error("the tokens stay as they were: %s", error)
        else:
            _log.info("read the tokens of %s again", self._path)


def read_tokens(path: Path | None, text: str) -> Access:
    """The tokens of a file and of an environment variable's text. Raises ConfigError, which names
    the line and never the token."""
    grants = [*_parsed(text.replace(";", "\n"), "KVMANAGER_TOKENS")]
    return Access(grants) if path is None else FileAccess(path, grants)


def new_token() -> str:
    """A token that nobody guesses."""
    return secrets.token_urlsafe(32)


def token_line(role: Role, tenants: Iterable[str], token: str) -> str:
    """The line that lets the holder of `token` in. Raises ConfigError for no or odd tenants."""
    named = ",".join(tenants)
    if not named or re.search(r"[\s;#]", named):
        raise ConfigError("tenants are names without blanks, separated by commas, or *")
    return f"{role.value} {named} sha256:{hashlib.sha256(token.encode()).hexdigest()}"


@lru_cache(64)
def is_loopback(host: str) -> bool:
    """Whether a host, as it is written, is this machine for itself."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def host_of(header: str) -> str:
    """The host of a Host header or of HOST:PORT; an IPv6 address without its brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] or header


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes with the file; () where there is none."""
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_mtime_ns, found.st_size, found.st_ino


def _of_file(path: Path) -> list[Grant]:
    try:
        written = path.read_text()
    except OSError as error:
        raise ConfigError(f"the tokens cannot be read: {error}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"the tokens cannot be read: {path} is no text") from None
    found = [*_parsed(written, str(path))]
    if not found:
        raise ConfigError(f"{path} holds no token; a line is {_FORM}")
    return found


def _parsed(text: str, source: str) -> Iterable[Grant]:
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        where = f"{source}, line {number}"
        if len(words) != 3:
            raise ConfigError(f"{where}: a token is written as {_FORM}")
        role, tenants, token = words
        if role not in [known.value for known in Role]:
            raise ConfigError(f"{where}: the role is node, router or admin")
        yield Grant(Role(role), _tenants(tenants, where), _digest(token, where))


def _tenants(written: str, where: str) -> frozenset[str]:
    tenants = frozenset(written.split(","))
    if "" in tenants:
        raise ConfigError(f"{where}: a tenant without a name; they are separated by commas")
    return tenants


def _digest(token: str, where: str) -> bytes:
    hashed = _HASHED.fullmatch(token)
    if hashed:
        return bytes.fromhex(hashed[1])
    if token.startswith("sha256:"):
        raise ConfigError(f"{where}: sha256: is followed by 64 hexadecimal digits")
    if len(token) < MIN_TOKEN_CHARACTERS:
        raise ConfigError(f"{where}: a token has at least {MIN_TOKEN_CHARACTERS} characters")
    return hashlib.sha256(token.encode()).digest()
