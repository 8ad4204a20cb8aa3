"""How the tools ask a registry: directly, in Redis, one short call after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from urllib.parse import unquote

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, RegistryUnavailable
from kvmanager.connection import Channel, Pool
from kvmanager.driver import Driver
from kvmanager.embedded import EmbeddedValkey, runs
from kvmanager.endpoint import redacted
from kvmanager.flow import Flow, T
from kvmanager.options import RegistryOptions
from kvmanager.replies import Forgotten
from kvmanager.shards import finder

_PATIENCE_S = 10.0
_TRY_AGAIN_S = 0.2


class RegistryAccess:
    """Redis behind an endpoint, `embedded` included. Between calls as much time passes as they
    take, so that the data path keeps at least half of the server."""

    def __init__(self, endpoint: str, options: RegistryOptions) -> None:
        """Raises ConfigError for the service's endpoints, which have no such calls."""
        if endpoint.startswith("http"):
            raise ConfigError(
                "the service does not list what its registry holds: name Redis itself "
                "(--registry redis://..., or global_kvmanager.endpoint); only --rebuild works "
                "through the service"
            )
        self.endpoint = endpoint
        self.options = options
        self._server: EmbeddedValkey | None = None
        url = endpoint
        if directory := embedded_directory(endpoint, options):
            self._server = EmbeddedValkey.acquire(directory)
            url = self._server.url
        self._finder = finder(url)
        self._tag = b""
        self._driver: Driver | None = None
        self._connection: Channel | None = None

    @property
    def shown(self) -> str:
        """The endpoint without secrets."""
        return redacted(self.endpoint)

    def ask(self, call: Callable[[], Flow[T]], tag: bytes) -> T:
        """The result of a flow on a hash tag's shard, which is tried again for ten seconds while
        the server does not answer. Raises RegistryError."""
        give_up_s = time.monotonic() + _PATIENCE_S
        while True:
            began_s = time.monotonic()
            try:
                result = self._run(call(), tag)
            except Forgotten:
                raise
            except RegistryUnavailable:
                self._disconnect()
                if time.monotonic() >= give_up_s:
                    raise
                time.sleep(_TRY_AGAIN_S)
            else:
                time.sleep(min(time.monotonic() - began_s, 0.01))
                return result

    def close(self) -> None:
        """Let go of the server."""
        self._disconnect()
        if self._server is not None:
            self._server.release()

    def __enter__(self) -> RegistryAccess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _run(self, flow: Flow[T], tag: bytes) -> T:
        if self._driver is None or tag != self._tag:
            self._disconnect()
            pool = Pool(self._finder, self.options.connect_timeout_ms, key=tag)
            self._driver, self._tag = Driver(pool, self.options), tag
        deadline = Deadline.after_ms(max(self.options.timeout_ms, 1000))
        if self._connection is None:
            self._connection = self._driver.connect(deadline, fresh=True)
        return self._driver.run_on(self._connection, flow, deadline)

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
        self._connection = None


def embedded_directory(endpoint: str, options: RegistryOptions) -> str:
    """Where an embedded registry is; "" for any other. Raises ConfigError if that is not said."""
    kind, _, directory = endpoint.partition(":")
    if kind != "embedded":
        return ""
    if not (directory or options.embedded_dir):
        raise ConfigError("endpoint embedded needs a directory: embedded:/directory")
    return unquote(directory) or options.embedded_dir or ""


def is_asleep(endpoint: str, options: RegistryOptions) -> bool:
    """Whether that is an embedded registry which does not run, since no process uses it."""
    directory = embedded_directory(endpoint, options)
    return bool(directory) and not runs(directory)
