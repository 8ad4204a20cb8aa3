"""The stores behind SGLang's host pools: opened when a pool is registered, tested, told of."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from hicache_backends.errors import ConfigError, HiCacheError
from hicache_backends.identity import Namespace
from hicache_backends.sizes import format_size
from hicache_storage.config import Config
from hicache_storage.opening import open_page_store
from hicache_storage.page_store import PageStore
from hicache_storage.sglang.engine import Engine
from hicache_storage.sglang.engine_figures import EngineFigures
from hicache_storage.sglang.host_pages import FlatPages, HostPages, tensor_bytes
from hicache_storage.sglang.identity import KV, namespace_of
from hicache_storage.sglang.model import Model, model_of
from hicache_storage.sglang.pool_store import PoolStore
from hicache_storage.sglang.samples import Samples
from hicache_storage.sglang.self_test import self_test
from hicache_storage.sglang.shard import Shard, refuse_unknown_shares

_log = logging.getLogger(__name__)


class Pools:
    """One `PoolStore` a pool. Pools are registered by one thread and looked up by others."""

    def __init__(
        self, config: Config, engine: Engine, storage_config: Any, *, zero_copy: bool
    ) -> None:
        """Raises ConfigError for an engine that can't be served rightly."""
        self.config = config
        self.shard = Shard.of(storage_config, engine)
        self.samples = Samples(bool(getattr(storage_config, "enable_storage_metrics", False)))
        self._engine = engine
        self._zero_copy = zero_copy and engine.zero_copy
        self._stores: dict[str, PoolStore] = {}
        self._by_tensor: dict[tuple[str, int, str], PoolStore | None] = {}
        self._empty: set[str] = set()  # DeepSeek-V4: the KV pool only counts, others hold it all
        self._opening = threading.Lock()
        self._anchor: Any = None
        self._closed = False
        self._figures: EngineFigures | None = None
        self._refuse_what_cannot_be_right()
        self._model: Model = model_of(config, engine, getattr(storage_config, "model_name", None))

    def is_empty(self, name: str) -> bool:
        """Whether the pages of a registered pool have no bytes: they are always there."""
        return str(name) in self._empty

    def get(self, name: str) -> PoolStore | None:
        """The store of a pool, None where there is none (yet, or any more)."""
        return self._stores.get(str(name))

    def all(self) -> list[PoolStore]:
        """Every open store."""
        known = [*self._stores.values(), *self._by_tensor.values()]
        return [store for store in known if store is not None]

    def register(self, pool: Any, name: str) -> None:
        """Open and test the store of a pool. Raises HiCacheError that says what to do."""
        if name == KV:
            self._anchor = pool
        if name in self._stores:
            return
        form = (HostPages.of(pool) if self._zero_copy else None) or FlatPages(pool)
        if not form.page_bytes:
            self._empty.add(name)
            return
        flat = isinstance(form, FlatPages)
        namespace = self._namespace(
            pool, self.shard, name=name, page_bytes=form.page_bytes, flat=flat
        )
        pages = PoolStore(self._open(namespace), form, self.samples)
        try:
            if self.config.sglang.register_pools and not pages.register(pool):
                _log.warning("sglang.register_pools: pages of the pool %r are copied still", name)
            tested = self_test(pages, pool)
        except BaseException:
            pages.close()
            raise
        _log.info("%s; %s", self._described(pages), tested)
        self._stores[name] = pages
        self._report_engine(pages.store)

    def of_tensor(self, suffix: str, tensor: Any) -> PoolStore | None:
        """The store of pages that come as tensors like this one, opened when first met.

        `suffix`: what follows the page hash in the key, "" for pages of the KV pool.
        """
        name, size = suffix or KV, tensor_bytes(tensor)
        known = self._stores.get(name)
        if known and isinstance(known.form, FlatPages) and known.form.page_bytes == size:
            return known
        kind = (name, size, str(tensor.dtype))
        if kind not in self._by_tensor:
            with self._opening:
                if kind not in self._by_tensor and not self._closed and self._anchor is not None:
                    opened = None  # where it fails it is not tried at every call
                    try:
                        opened = self._open_for_tensors(name, size, tensor)
                    finally:
                        self._by_tensor[kind] = opened
        return self._by_tensor.get(kind)

    def close(self) -> None:
        """Close every store; what is called later finds none."""
        with self._opening:
            self._closed = True
            stores = self.all()
            self._stores, self._by_tensor = {}, {}
        with ExitStack() as closing:  # each, whatever the others raise
            if self._figures is not None:
                closing.callback(self._figures.close)
            for pages in reversed(stores):
                closing.callback(pages.close)

    def _refuse_what_cannot_be_right(self) -> None:
        refuse_unknown_shares(self._engine, self.shard)
        if self._engine.serves_lora and not self._engine.hashes_are_salted:
            raise ConfigError(
                f"SGLang {self._engine.version} names pages of every LoRA adapter alike, so that "
                "one would be served those of another: use SGLang 0.5.20 or later, or no LoRA"
            )
        shared = self.config.global_kvmanager.enabled and self.config.backend != "memory"
        if self.shard.replicated and self.shard.tp_size > 1 and not shared:
            raise ConfigError(
                "of an MLA model only the first tensor-parallel rank stores pages, which the "
                'others find through a registry: set global_kvmanager to {"enabled": true, '
                '"endpoint": "embedded"}, or to a Redis that all hosts reach, and a backend that '
                "all ranks reach"
            )

    def _namespace(
        self, pool: Any, shard: Shard, *, name: str, page_bytes: int, flat: bool
    ) -> Namespace:
        return namespace_of(
            self.config,
            self._engine,
            self._model,
            shard,
            pool,
            name=name,
            page_bytes=page_bytes,
            flat=flat,
        )

    def _open(self, namespace: Namespace) -> PageStore:
        server = self._engine.server_name
        if server and self.shard.dp_rank:
            server = f"{server}-dp{self.shard.dp_rank}"
        return open_page_store(
            self.config,
            namespace,
            server=server,
            rank=self.shard.rank,
            warn_of_no_hits=False,  # SilentZero knows more
        )

    def _report_engine(self, store: PageStore) -> None:
        """The first store tells the registry what SGLang counts, too."""
        if store.reporting is None or self._figures is not None:
            return
        self._figures = store.reporting.engine = EngineFigures(store.namespace.page_tokens)
        store.reporting.prefill_tokens_per_s = self.config.sglang.prefill_tokens_per_s or 0.0

    def _open_for_tensors(self, name: str, page_bytes: int, tensor: Any) -> PoolStore | None:
        """Pages of a pool that SGLang doesn't show: which heads they hold isn't known, so that
        each rank has its own."""
        pool = _Shown(self._anchor, tensor)
        shard = dataclasses.replace(self.shard, replicated=self.shard.replicated and name == KV)
        try:
            namespace = self._namespace(pool, shard, name=name, page_bytes=page_bytes, flat=True)
            pages = PoolStore(self._open(namespace), None, self.samples)
        except HiCacheError as error:
            _log.error("no store for pages %r of %d bytes: %s", name, page_bytes, error)
            return None
        _log.info("%s", self._described(pages))
        return pages

    def _described(self, pages: PoolStore) -> str:
        store, namespace = pages.store, pages.store.namespace
        stats = store.storage.stats()
        media = ", ".join(medium.hex()[:12] for medium in store.storage.media) or "of this process"
        capacity = int(stats.get("capacity_bytes", 0))
        return (
            f"HiCache initialized: pool {namespace.pool}, backend {self.config.backend}, "
            f"{_how(stats)}{pages.transfer}, namespace {namespace.fingerprint.hex()[:12]} "
            f"({namespace.model}, {namespace.revision}, {namespace.kv_dtype}, {namespace.layout}, "
            f"pages of {namespace.page_tokens} tokens, {format_size(namespace.page_bytes)}), "
            f"medium {media}, capacity {format_size(capacity) if capacity else 'as it has'}, "
            f"registry {store.registry.state.value if store.registry else 'off'}"
        )


def _how(stats: Mapping[str, int | float | str]) -> str:
    """The engine or the place in force, for a line of text."""
    if "io_mode" in stats:
        return f"engine {stats['io_engine']}, {stats['io_mode']} I/O, "
    place = f"{stats['object_store']}, " if "object_store" in stats else ""
    return place + (f"transport {stats['transport']}, " if "transport" in stats else "")


class _Shown:
    """What a tensor tells of the pool that it comes from."""

    def __init__(self, anchor: Any, tensor: Any) -> None:
        self.layout, self.page_size = anchor.layout, anchor.page_size
        self.dtype = tensor.dtype
        self.start_layer = getattr(anchor, "start_layer", 0)
