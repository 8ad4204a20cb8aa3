"""Opening a session with the registry."""

from __future__ import annotations

import logging
from urllib.parse import unquote, urlsplit

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, RegistryRefused, RegistryUnavailable
from hicache_backends.identity import Namespace
from kvmanager import keys
from kvmanager.connection import Pool
from kvmanager.embedded import EmbeddedValkey
from kvmanager.http.connection import HttpPool
from kvmanager.http.endpoint import SCHEMES, HttpEndpoint
from kvmanager.http.wire import HttpWire
from kvmanager.model import EntrySource, Member
from kvmanager.options import RegistryOptions
from kvmanager.session import RedisRegistry
from kvmanager.shards import finder

JOIN_MS = 800.0
"""So long an attempt to join at the start may hold the caller up."""

_log = logging.getLogger(__name__)


def connect_registry(
    endpoint: str,
    namespace: Namespace,
    member: Member,
    *,
    entries: EntrySource | None = None,
    options: RegistryOptions | None = None,
) -> RedisRegistry:
    """A session of `member` in `namespace`, registered if the registry answers within a second.

    `endpoint`: redis://, rediss://, unix://, redis-sentinel://, redis-cluster:// (`shards.finder`),
    `embedded`, `embedded:/directory`, or the service's http:// and https://, several separated by
    commas. `entries` lists what the store holds, for a
    registry that does not know it. If the registry is down the session joins later, once `start`
    has been called.
    Raises ConfigError for an endpoint that cannot be one, RegistryRefused for a registry that will
    never take this member: no permission, another namespace under the same tag, another schema.
    """
    options = options or RegistryOptions()
    if urlsplit(endpoint).scheme == "embedded" or endpoint == "embedded":
        session = _embedded(endpoint, namespace, member, entries, options)
    elif endpoint.startswith(SCHEMES):
        service = HttpPool(HttpEndpoint.parse(endpoint, options.token), options.connect_timeout_ms)
        session = RedisRegistry(service, namespace, member, options, entries, speaks=HttpWire)
    else:
        tag = keys.tag(namespace.fingerprint)
        pool = Pool(finder(endpoint), options.connect_timeout_ms, key=tag)
        session = RedisRegistry(pool, namespace, member, options, entries)
    try:
        session.join(Deadline.after_ms(min(JOIN_MS, options.timeout_ms)))
    except RegistryUnavailable:
        pass  # the breaker has warned
    except RegistryRefused as refusal:
        if "OOM" not in str(refusal):
            session.close()
            raise
        _log.warning("the registry takes no new member now: %s", refusal)
    return session


def check_endpoint(endpoint: str) -> None:
    """Raises ConfigError for one that cannot be one; connects nowhere."""
    if endpoint.startswith(SCHEMES):
        HttpEndpoint.parse(endpoint)
    elif urlsplit(endpoint).scheme != "embedded" and endpoint != "embedded":
        finder(endpoint)


def _embedded(
    endpoint: str,
    namespace: Namespace,
    member: Member,
    entries: EntrySource | None,
    options: RegistryOptions,
) -> RedisRegistry:
    directory = unquote(endpoint.partition(":")[2]) or options.embedded_dir
    if not directory:
        raise ConfigError(
            "endpoint embedded needs a directory: set embedded_dir, or write embedded:/directory"
        )
    server = EmbeddedValkey.acquire(directory)
    pool = Pool(finder(server.url), options.connect_timeout_ms)

    def revive() -> None:
        server.ensure(options.timeout_ms)
        pool.finder = finder(server.url)

    return RedisRegistry(
        pool, namespace, member, options, entries, revive=revive, release=server.release
    )
