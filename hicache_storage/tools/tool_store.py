"""The page store of a tool's process, with a registry where others share its directory."""

from __future__ import annotations

import os
import socket
import uuid

from hicache_backends.identity import Namespace
from hicache_backends.nvme import NvmeOptions, NvmeStorage, open_nvme
from hicache_storage.options import StoreOptions
from hicache_storage.page_store import PageStore
from kvmanager.connect import connect_registry
from kvmanager.model import Member
from kvmanager.options import RegistryOptions


def open_tool_store(
    namespace: Namespace,
    options: NvmeOptions,
    *,
    endpoint: str | None = None,
    registry_options: RegistryOptions | None = None,
    store_options: StoreOptions | None = None,
) -> tuple[PageStore, NvmeStorage]:
    """A store of its own on the first of the options' paths, shared through `endpoint` if given."""
    storage = open_nvme(namespace, options, shared=endpoint is not None)
    if endpoint is None:
        return PageStore(storage, namespace, options=store_options), storage
    member = Member(
        process=uuid.uuid4().bytes,
        host=socket.gethostname(),
        server=f"tool-{os.getpid()}",
        store=storage.store,
        medium=storage.medium,
    )
    registry = connect_registry(
        endpoint,
        namespace,
        member,
        entries=storage.entries,
        options=registry_options or RegistryOptions(),
    )
    return PageStore(storage, namespace, registry=registry, options=store_options), storage
