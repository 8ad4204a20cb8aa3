"""The page store of a tool's process, with a registry where others share its directory."""

from __future__ import annotations

from hicache_backends.identity import Namespace
from hicache_backends.nvme import NvmeOptions, NvmeStorage, open_nvme
from hicache_storage.metrics import Metrics
from hicache_storage.opening import join_registry
from hicache_storage.options import StoreOptions
from hicache_storage.page_store import PageStore
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
    registry = None
    if endpoint is not None:
        registry = join_registry(endpoint, namespace, storage, options=registry_options)
    metrics = Metrics.create("nvme", namespace.tenant)
    store = PageStore(storage, namespace, registry=registry, options=store_options, metrics=metrics)
    return store, storage
