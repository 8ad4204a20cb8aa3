"""From a configuration to a running page store."""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hicache_backends.identity import Namespace
from hicache_backends.storage import PageEntry, PageStorage
from hicache_backends.table import open_storage
from hicache_storage.metrics import Metrics
from hicache_storage.page_store import PageStore
from hicache_storage.sessions import RegistrySet
from kvmanager.model import Member
from kvmanager.options import RegistryOptions
from kvmanager.registry import Registry

if TYPE_CHECKING:
    from hicache_storage.config import Config

_log = logging.getLogger(__name__)


def open_page_store(
    config: Config,
    namespace: Namespace,
    *,
    server: str = "",
    rank: int = 0,
    warn_of_no_hits: bool = True,
) -> PageStore:
    """The configured store for the pages of `namespace`.

    `server` names the processes that answer requests together, `rank` this one of them.
    `warn_of_no_hits`: say once that pages are stored and none is ever found.
    Raises ConfigError, StorageError; RegistryError only for a registry that will never take this
    process. One that is down is joined later.
    """
    shared = config.global_kvmanager.enabled
    storage = open_storage(config.backend, namespace, config.storage_options(), shared=shared)
    try:
        registry = None
        if shared:
            registry = join_registry(
                config.registry_endpoint(),
                namespace,
                storage,
                options=config.registry_options(),
                server=server,
                rank=rank,
            )
        return PageStore(
            storage,
            namespace,
            registry=registry,
            options=config.store_options(),
            metrics=Metrics.create(
                config.backend, namespace.tenant, warn_of_no_hits=warn_of_no_hits
            ),
            access_log=config.access_log(),
        )
    except BaseException:
        storage.close()
        raise


def join_registry(
    endpoint: str,
    namespace: Namespace,
    storage: PageStorage,
    *,
    options: RegistryOptions | None = None,
    server: str = "",
    rank: int = 0,
) -> Registry | None:
    """A session for each store of `storage`; None where no other process could reach its pages.

    Raises ConfigError, RegistryRefused.
    """
    if not storage.stores:
        _log.info("the registry is not used: no other process reaches this storage's pages")
        return None
    # kvmanager.connect brings redis along: a process that works alone does without
    from kvmanager.connect import connect_registry

    process, host = uuid.uuid4().bytes, socket.gethostname()
    sessions: dict[bytes, Registry] = {}
    only = len(storage.stores) == 1  # it answers for what the storage has taken over, too
    try:
        for store, medium in storage.stores:
            sessions[store] = connect_registry(
                endpoint,
                namespace,
                Member(process, host, server or f"{host}-{os.getpid()}", store, medium, rank=rank),
                entries=storage.entries if only else _OwnPages(storage, store),
                options=options,
            )
    except BaseException:
        for session in sessions.values():
            session.close()
        raise
    if len(sessions) == 1:
        return next(iter(sessions.values()))
    return RegistrySet(sessions, storage.store_of)


class _OwnPages:
    """The pages of one store of a storage that has several."""

    def __init__(self, storage: PageStorage, store: bytes) -> None:
        self._storage = storage
        self._store = store

    def __call__(self) -> Iterator[PageEntry]:
        return (e for e in self._storage.entries() if e.location.startswith(self._store))
