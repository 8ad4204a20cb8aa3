"""The class that SGLang loads: its calls, each of which answers whatever happens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from sglang.srt.mem_cache import hicache_storage as sglang_storage

from hicache_backends.outcomes import Outcome
from hicache_storage.sglang.engine import running_engine
from hicache_storage.sglang.exposition import serve_metrics
from hicache_storage.sglang.guard import Guard
from hicache_storage.sglang.identity import KV
from hicache_storage.sglang.neighbours import neighbours
from hicache_storage.sglang.pool_store import PoolStore, call_limit, settled
from hicache_storage.sglang.pools import Pools
from hicache_storage.sglang.settings import plugin_config, wants_zero_copy
from hicache_storage.sglang.silence import SilentZero
from hicache_storage.sglang.transfers import Transfers, parent_of, result

_log = logging.getLogger(__name__)
_SUFFIX = "."
"""Between a page hash and the pool that a tensor belongs to, in keys such as `<hash>.draft`."""


class HiCacheL3(sglang_storage.HiCacheStorage):  # type: ignore[misc]  # SGLang ships no types
    """L3 of one SGLang rank, over any backend of this library.

    SGLang makes it as `HiCacheL3(storage_config, {})`. A wrong configuration, an unknown part of
    the namespace or a storage that doesn't work ends the start; from then on no call raises: a
    failure is a miss, counted and told of.
    """

    def __init__(self, storage_config: Any, *_ignored: Any, **_unused: Any) -> None:
        extra = getattr(storage_config, "extra_config", None)
        config = plugin_config(extra)
        self._guard = Guard()
        self._silence: SilentZero | None = None
        engine = running_engine()
        self._pools = Pools(config, engine, storage_config, zero_copy=wants_zero_copy(extra))
        self._transfers = Transfers(self._pools)
        shard = self._pools.shard
        self._stop_metrics = serve_metrics(
            config.sglang,
            shard.number,
            ranks=shard.ranks,
            replicas=1 if engine.splits_requests else int(engine.arg("dp_size") or 1),
        )

    def register_mem_pool_host(self, mem_pool_host: Any) -> None:
        """Open and test the store of the KV pool. Raises HiCacheError that says what to do."""
        self.mem_pool_host = mem_pool_host
        self._pools.register(mem_pool_host, KV)
        if pages := self._pools.get(KV):
            store, config = pages.store, self._pools.config
            self._silence = SilentZero(
                store.namespace, store.explain, lambda: neighbours(config, store.namespace)
            )

    def register_mem_host_pool_v2(self, host_pool: Any, host_pool_name: Any) -> None:
        """Open and test the store of another pool. Raises HiCacheError that says what to do."""
        self._pools.register(host_pool, str(host_pool_name))

    def on_host_pools_registered(self) -> None:
        """Nothing is left to do: each pool was opened and tested as it came."""

    # The pages of the KV pool, by index.

    def batch_exists(self, keys: Sequence[str], extra_info: Any = None) -> int:
        """Pages there are from the start. This side's prefix keys lack pages: never used."""
        return self._guard.run("batch_exists", 0, self._exists, keys)

    def batch_get_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """For each page whether its host page holds it now."""
        missed = [False] * len(keys)
        return self._guard.run("batch_get_v1", missed, self._get, keys, host_indices)

    def batch_set_v1(
        self, keys: Sequence[str], host_indices: Any, extra_info: Any = None
    ) -> list[bool]:
        """For each page whether it's stored, or being stored by another process."""
        refused = [False] * len(keys)
        return self._guard.run("batch_set_v1", refused, self._set, keys, host_indices, extra_info)

    # The pages of several pools, by index.

    def batch_exists_v2(
        self, keys: Sequence[str], pool_transfers: Any = None, extra_info: Any = None
    ) -> Any:
        """SGLang's `PoolTransferResult`: the prefixes of which every pool has its part."""
        nothing: tuple[dict[str, int], list[int]] = ({}, [])
        reach, legal = self._guard.run(
            "batch_exists_v2", nothing, self._find, keys, pool_transfers or ()
        )
        return result(sglang_storage.PoolTransferResult, reach, legal)

    def batch_get_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, Any]:
        """For each pool, for each of its pages whether its host page holds it now."""
        until = call_limit()
        return {
            transfer.name: self._guard.run(
                "batch_get_v2", _all_false(transfer), self._transfers.get, transfer, until
            )
            for transfer in transfers
        }

    def batch_set_v2(self, transfers: Sequence[Any], extra_info: Any = None) -> dict[str, Any]:
        """For each pool, for each of its pages whether it's stored."""
        parent, until = parent_of(extra_info), call_limit()
        return {
            transfer.name: self._guard.run(
                "batch_set_v2", _all_false(transfer), self._transfers.set, transfer, parent, until
            )
            for transfer in transfers
        }

    # Pages as tensors: releases before 0.5.6, and pools that are handed over in no other way.

    def exists(self, key: str) -> bool:
        """Whether one page is there."""
        return self.batch_exists([key]) == 1

    def get(self, key: str, target_location: Any = None, target_sizes: Any = None) -> Any:
        """The page in `target_location`, or None."""
        return self.batch_get([key], [target_location], target_sizes)[0]

    def batch_get(
        self, keys: Sequence[str], target_locations: Any = None, target_sizes: Any = None
    ) -> list[Any]:
        """For each page its target tensor, filled, or None."""
        missed: list[Any] = [None] * len(keys)
        return self._guard.run("batch_get", missed, self._get_tensors, keys, target_locations)

    def set(
        self,
        key: str,
        value: Any = None,
        target_location: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Whether one page is stored."""
        return self.batch_set([key], [value])

    def batch_set(
        self,
        keys: Sequence[str],
        values: Any = None,
        target_locations: Any = None,
        target_sizes: Any = None,
    ) -> bool:
        """Whether all these pages are stored."""
        return self._guard.run("batch_set", False, self._set_tensors, keys, values)

    # Control.

    def clear(self) -> bool:
        """Remove all pages of this rank's own stores; whether that went well."""
        return self._guard.run("clear", False, self._clear)

    def get_stats(self) -> Any:
        """SGLang's `StorageMetrics` of what was moved since the last call, None if nothing."""
        return self._guard.run("get_stats", None, self._pools.samples.collect)

    def close(self) -> None:
        """Close the stores. Calls that come later miss."""
        self._guard.run("close", None, self._pools.close)
        self._guard.run("close", None, self._stop_metrics)

    def _exists(self, keys: Sequence[str]) -> int:
        found = self._transfers.kv_prefix(keys)
        if self._silence is not None:
            self._silence.asked(keys, found)
        return found

    def _find(self, keys: Sequence[str], transfers: Any) -> tuple[dict[str, int], list[int]]:
        reach, legal = self._transfers.find(keys, transfers)
        if self._silence is not None:
            self._silence.asked(keys, legal[-1] if legal else 0)
        return reach, legal

    def _get(self, keys: Sequence[str], host_indices: Any) -> list[bool]:
        pages = self._pools.get(KV)
        if pages is None or not keys:
            return [self._pools.is_empty(KV)] * len(keys)
        outcomes = pages.get(keys, host_indices)
        return self._read(outcomes)

    def _set(self, keys: Sequence[str], host_indices: Any, extra_info: Any) -> list[bool]:
        pages = self._pools.get(KV)
        if not self._pools.shard.writes:
            return [True] * len(keys)  # the first rank stores the same bytes
        if pages is None or not keys:
            return [self._pools.is_empty(KV)] * len(keys)
        return self._stored(pages.put(keys, host_indices, parent_of(extra_info)))

    def _get_tensors(self, keys: Sequence[str], targets: Any) -> list[Any]:
        targets, until = self._targets(targets, len(keys)), call_limit()
        filled: list[Any] = [None] * len(keys)
        for pages, indices in self._by_store(keys, targets):
            part = [targets[i] for i in indices]
            read = self._read(pages.get_tensors(_hashes(keys, indices), part, until))
            for i, hit in zip(indices, read, strict=True):
                filled[i] = targets[i] if hit else None
        return filled

    def _set_tensors(self, keys: Sequence[str], values: Any) -> bool:
        if not self._pools.shard.writes and not any(_SUFFIX in key for key in keys):
            return True  # the first rank stores the same bytes
        done, until = 0, call_limit()
        for pages, indices in self._by_store(keys, values):
            part, hashes = [values[i] for i in indices], _hashes(keys, indices)
            done += sum(self._stored(pages.put_tensors(hashes, part, until=until)))
        return done == len(keys)

    def _targets(self, targets: Any, count: int) -> list[Any]:
        given = list(targets) if targets is not None else [None] * count
        pool = self.mem_pool_host
        return [pool.get_dummy_flat_data_page() if t is None else t for t in given]

    def _by_store(
        self, keys: Sequence[str], tensors: Sequence[Any]
    ) -> list[tuple[PoolStore, list[int]]]:
        """The stores that these pages belong to, each with the positions of its pages."""
        found: dict[int, tuple[PoolStore, list[int]]] = {}
        for i, (key, tensor) in enumerate(zip(keys, tensors, strict=True)):
            pages = self._pools.of_tensor(key.partition(_SUFFIX)[2], tensor)
            if pages is not None:
                found.setdefault(id(pages), (pages, []))[1].append(i)
        return list(found.values())

    def _read(self, outcomes: Sequence[Outcome]) -> list[bool]:
        hits = [outcome.ok for outcome in outcomes]
        if self._silence is not None:
            self._silence.read(sum(hits))
        return hits

    def _stored(self, outcomes: Sequence[Outcome]) -> list[bool]:
        if self._silence is not None:
            self._silence.stored(sum(outcome.ok for outcome in outcomes))
        return settled(outcomes)

    def _clear(self) -> bool:
        for pages in self._pools.all():
            pages.store.clear()
        return True


def _all_false(transfer: Any) -> list[bool]:
    return [False] * len(transfer.keys or ())


def _hashes(keys: Sequence[str], indices: Sequence[int]) -> list[str]:
    return [keys[i].partition(_SUFFIX)[0] for i in indices]


def _unheard_of(name: str) -> Any:
    def call(*_args: Any, **_kwargs: Any) -> Any:
        raise NotImplementedError(f"HiCacheL3 does not know SGLang's {name}")

    return call


for _name in HiCacheL3.__abstractmethods__:  # of a later SGLang: only a call of it may fail
    setattr(HiCacheL3, _name, _unheard_of(_name))
HiCacheL3.__abstractmethods__ = frozenset()
