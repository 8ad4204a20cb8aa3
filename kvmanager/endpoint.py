"""One server of the registry: checking its URL, hiding its secrets, connecting."""

from __future__ import annotations

import ipaddress
import logging
import socket
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import redis
import redis.connection
from redis.backoff import NoBackoff
from redis.retry import Retry

from hicache_backends.errors import ConfigError, RegistryError, RegistryRefused, RegistryUnavailable
from kvmanager import resp

SCHEMES = ("redis://", "rediss://", "unix://")
_CHOICES = (
    "redis://host:port, rediss://host:port (TLS), unix:///path, "
    "redis-sentinel://host:port/service, redis-cluster://host:port (rediss- with TLS), "
    "http://host:port, https://host:port (of the last four several, with commas) or embedded"
)
_SECRET = ("password", "ssl_password", "username", "sentinel_password", "sentinel_username")

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Endpoint:
    """A Redis or Valkey server. Printing it shows no secret.

    `found`: others said that it is a master, which it may be no longer; it is asked at each
    connection.
    """

    shown: str
    _settings: dict[str, Any] = field(repr=False)
    found: bool = False

    @classmethod
    def parse(cls, url: str) -> Endpoint:
        """Raises ConfigError for anything but redis://, rediss:// and unix://."""
        shown = redacted(url)
        if not url.startswith(SCHEMES):
            raise ConfigError(f"endpoint {shown}: not one of {_CHOICES}")
        try:
            settings = dict(redis.connection.parse_url(url))  # type: ignore[no-untyped-call]  # redis-py's
            port = urlsplit(url).port or 6379
        except ValueError:
            raise ConfigError(
                f"endpoint {shown}: not a URL that Redis clients understand"
            ) from None
        if url.startswith("unix://") and not settings.get("path"):
            raise ConfigError(f"endpoint {shown}: names no socket; write unix:///path")
        if url.startswith("redis://") and not settings.get("password"):
            _warn_if_exposed(settings.get("host", "localhost"), shown)
        if not url.startswith("unix://"):
            settings.setdefault("port", port)
            settings.setdefault("host", "localhost")
        return cls(shown, settings)

    @property
    def host(self) -> str:
        """By name or address."""
        return str(self._settings.get("host", "localhost"))

    def at(self, host: str, port: int, shown: str, **others: Any) -> Endpoint:
        """Another server that takes the same settings, but for some."""
        return replace(
            self, shown=shown, _settings={**self._settings, "host": host, "port": port, **others}
        )

    def connect(self, timeout_s: float) -> redis.connection.AbstractConnection:
        """A connection of redis-py's, authenticated, its database chosen.

        Raises RegistryUnavailable, RegistryRefused.
        """
        settings = self.settings(timeout_s)
        kind = settings.pop("connection_class", redis.Connection)
        settings["retry"] = Retry(NoBackoff(), 0)
        try:
            connection: redis.connection.AbstractConnection = kind(**settings)
            for told in ("driver_info", "lib_name", "lib_version"):  # by redis-py's version
                setattr(connection, told, None)  # saves two round trips before the first call
            connection.connect()  # type: ignore[no-untyped-call]  # redis-py's
            if self.found:
                connection.send_command("ROLE")  # type: ignore[no-untyped-call]  # redis-py's
                self.check_role(connection.read_response())
        except (redis.RedisError, OSError) as error:
            raise self.translated(error) from None
        except TypeError as error:
            raise ConfigError(f"endpoint {self.shown}: {error}") from None
        return connection

    def check_role(self, reply: Any) -> None:
        """Raises RegistryUnavailable for what ROLE says of a server that is no master."""
        role = reply[0] if isinstance(reply, list) and reply else None
        if role != b"master":
            raise RegistryUnavailable(f"{self.shown} is no master, but {role!r}")

    def settings(self, timeout_s: float) -> dict[str, Any]:
        """What redis-py's connections are made with; no `connection_class` means TCP."""
        settings = {
            **self._settings,
            "socket_timeout": timeout_s,
            "protocol": 2,
            "decode_responses": False,
            "health_check_interval": 0,
        }
        if "path" not in settings:
            settings["socket_connect_timeout"] = timeout_s
        return settings

    def translated(self, error: Exception) -> RegistryError:
        """The error for one of redis-py's, or of the system, while connecting."""
        said = f"{self.shown}: {error}"
        if isinstance(error, redis.AuthenticationError):
            return RegistryRefused(f"{said} (a user or password is missing or wrong: {resp.FILES})")
        if isinstance(error, (redis.ConnectionError, redis.TimeoutError, OSError)):
            return RegistryUnavailable(said)
        return type(resp.error(str(error)))(said)


def redacted(url: str) -> str:
    """The URL, or each of several HTTP ones, without its user, password and secret options."""
    if url.startswith("http") and "," in url:
        return ",".join(map(redacted, url.split(",")))
    try:
        parts = urlsplit(url)
        query = urlencode(
            [(k, "***" if k in _SECRET else v) for k, v in parse_qsl(parts.query)], safe="*/"
        )
    except ValueError:
        return url.split("://", 1)[0] + "://***"
    netloc = parts.netloc.rpartition("@")
    hidden = "***@" if netloc[1] else ""
    return urlunsplit(parts._replace(netloc=hidden + netloc[2], query=query))


def warn_of_clear_token(host: str, shown: str) -> None:
    """Tells of a token that others on the network read."""
    if not _is_local(host):
        _log.warning(
            "registry %s: the token is sent in the clear; use https:// across networks", shown
        )


def _warn_if_exposed(host: str, shown: str) -> None:
    if not _is_local(host):
        _log.warning(
            "registry %s: no password, and not on this machine; anyone who reaches it can direct "
            "reads anywhere. Use a password, and rediss:// across networks",
            shown,
        )


def _is_local(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == socket.gethostname()
