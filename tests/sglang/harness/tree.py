"""SGLang's radix tree, cache controller and host pools on CPU, as a scheduler sets them up."""

from __future__ import annotations

import atexit
import json
import time
from array import array
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from types import TracebackType
from typing import Any
from unittest import mock

import torch
from sglang.srt.managers.cache_controller import HiCacheController
from sglang.srt.mem_cache.allocator.paged import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import get_flags, get_parallel
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler

WAIT_S = 30.0

Place = tuple[torch.Tensor, torch.Tensor]  # bytes of a buffer, rows of it

_requests = count()


@dataclass(frozen=True)
class Shape:
    """What a model and its flags make of the KV cache; `tokens` is the room on the device."""

    kind: str = "mha"  # or mla
    layout: str = "page_first"
    dtype: torch.dtype = torch.bfloat16
    page_size: int = 16
    layers: int = 4
    first_layer: int = 0
    heads: int = 2
    head_dim: int = 64
    tokens: int = 8192


@dataclass(frozen=True)
class Ranks:
    """Where this scheduler stands: data and context parallelism divide the `tp_size` ranks."""

    tp_rank: int = 0
    tp_size: int = 1
    pp_rank: int = 0
    pp_size: int = 1
    cp_size: int = 1
    dp_size: int = 1

    @contextmanager
    def applied(self) -> Iterator[None]:
        """SGLang believes to run at these ranks: what it asks process groups for is answered."""
        attn_tp_size = self.tp_size // (self.cp_size * self.dp_size)
        cp_rank = self.tp_rank // attn_tp_size % self.cp_size
        values = {
            "tp_rank": self.tp_rank,
            "tp_size": self.tp_size,
            "pp_rank": self.pp_rank,
            "pp_size": self.pp_size,
            "attn_tp_rank": self.tp_rank % attn_tp_size,
            "attn_tp_size": attn_tp_size,
            "attn_cp_rank": cp_rank,
            "attn_cp_size": self.cp_size,
            "attn_dp_rank": self.tp_rank // (attn_tp_size * self.cp_size),
            "attn_dp_size": self.dp_size,
            "moe_tp_rank": self.tp_rank,
            "moe_tp_size": self.tp_size,
        }
        with (
            get_parallel().override(**values),
            get_flags().dp.override(enabled=self.dp_size > 1),
            mock.patch.object(
                HiCacheController,
                "get_attn_cp_rank_and_size",
                return_value=(cp_rank, self.cp_size),
            ),
        ):
            yield


@dataclass(frozen=True)
class Flags:
    """Launch flags that change what storage sees."""

    storage_backend: str = "dynamic"
    prefetch_policy: str = "wait_complete"
    write_policy: str = "write_through"
    host_memory_mode: str = "cache"
    model_name: str | None = None
    host_ratio: float = 2.0


def tokens(pages: int, *, page_size: int = 16, seed: int = 0) -> array[int]:
    """Token ids of a prompt of whole pages; another seed shares no page with it."""
    start = seed * 1_000_003
    return array("q", [(start + i * 7919) % 50_000 for i in range(pages * page_size)])


class Tree:
    """One scheduler's cache. Cold at first: a second one with the same store is another server."""

    def __init__(
        self,
        extra_config: Mapping[str, Any],
        shape: Shape | None = None,
        ranks: Ranks | None = None,
        flags: Flags | None = None,
    ) -> None:
        self.shape, self.flags = shape or Shape(), flags or Flags()
        # Prompts of one page count as well, where SGLang's default asks for 256 tokens.
        self.extra_config = {"prefetch_threshold": self.shape.page_size, **extra_config}
        self.ranks = ranks or Ranks()
        with self.ranks.applied():
            self._build()
        self.cache.write_through_threshold = 1
        self.cache.load_back_threshold = 0

    def _build(self) -> None:
        args = server_args(self.extra_config, self.shape, self.flags)
        params = self._make_pools()
        self.cache = UnifiedRadixCache(params=params)
        self.cache.init_hicache(args, params)
        atexit.unregister(self.cache.shutdown)  # close() does it; atexit would keep every pool

    def _make_pools(self) -> Any:
        """Pools on the device, and the parameters of a cache over them."""
        shape = self.shape
        self.pool = self._device_pool()
        self.allocator = PagedTokenToKVPoolAllocator(
            shape.tokens,
            page_size=shape.page_size,
            dtype=shape.dtype,
            device="cpu",
            kvcache=self.pool,
            need_sort=False,
        )
        requests = ReqToTokenPool(
            size=8, max_context_len=shape.tokens, device="cpu", enable_memory_saver=False
        )
        return self._params(requests, ComponentType.FULL)

    def _device_pool(self) -> Any:
        return device_pool(self.shape)

    def _params(self, requests: Any, *components: ComponentType, **more: Any) -> Any:
        return CacheInitParams(
            req_to_token_pool=requests,
            token_to_kv_pool_allocator=self.allocator,
            page_size=self.shape.page_size,
            disable=False,
            tree_components=components,
            **more,
        )

    @property
    def controller(self) -> Any:
        """SGLang's HybridCacheController."""
        return self.cache.cache_controller

    @property
    def backend(self) -> Any:
        """The storage backend that the controller holds now."""
        return self.controller.storage_backend

    def insert(self, ids: array[int], *, seed: int = 0) -> list[torch.Tensor]:
        """A prompt computed: random bytes in its pages, backed up to host and storage.

        Returns what the device holds for it, as `contents` does. Pages that the tree has stay.
        """
        held = self._device_indices(ids)
        fresh = self._alloc(len(ids) - len(held))
        params = InsertParams(key=RadixKey(ids), value=torch.cat([held, fresh]))
        generator = torch.Generator().manual_seed(seed)
        for buffer, rows in (*self._kv(fresh), *self._beside(fresh, params)):
            size = (len(rows), *buffer.shape[1:])
            buffer[rows] = torch.randint(0, 256, size, generator=generator, dtype=torch.uint8)
        self.cache.insert(params)
        self.wait_for_backups()
        return self.contents(ids)

    def wait_for_backups(self) -> None:
        """Until nothing is on its way to host memory or storage."""
        cache = self.cache
        self._pump(lambda: not cache.ongoing_write_through and not cache.ongoing_backup, "backups")

    def prefetch(self, ids: array[int]) -> int:
        """A request asks storage for a prompt; returns how many tokens came to host memory."""
        handle = CacheRequestHandle(f"request-{next(_requests)}", 0)
        matched = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
        node = matched.last_host_node
        present = matched.device_prefix_len + matched.host_hit_length
        prefix_keys = (
            self.cache.get_prefix_hash_values(node)
            if self.cache.hicache_storage_pass_prefix_keys
            else None
        )
        self.cache.prefetch_from_storage(
            handle, node, ids[present:], self.cache.get_last_hash_value(node), prefix_keys
        )
        self._pump(lambda: self.cache.check_prefetch_progress(handle), "a prefetch")
        return int(self.cache.pop_prefetch_loaded_tokens(handle))

    def load_back(self, ids: array[int]) -> list[torch.Tensor]:
        """Bring what the host has of a prompt to the device; returns its contents there."""
        matched = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
        if matched.host_hit_length:
            if not self.cache.load_back(matched.best_match_node, req=self._request()):
                raise AssertionError("SGLang refused to load the prompt back")
            self.cache.ready_to_load_host_cache()
            self._pump(lambda: not self.cache.ongoing_load_back, "a load back")
        return self.contents(ids)

    def contents(self, ids: array[int]) -> list[torch.Tensor]:
        """The bytes of a prompt on the device: a tensor a buffer of each pool, (rows, ...)."""
        matched = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
        node = matched.last_device_node
        indices = self.cache.path_device_indices(node)
        places = (*self._kv(indices), *self._state(node, indices))
        return [buffer[rows] for buffer, rows in places]

    def attach(self, extra_config: Mapping[str, Any] | None = None) -> tuple[bool, str]:
        """Attach a backend at run time, as the admin API does."""
        config = json.dumps(self.extra_config if extra_config is None else dict(extra_config))
        with self.ranks.applied():
            ok, message = self.cache.attach_storage_backend(self.flags.storage_backend, config)
        return bool(ok), str(message)

    def detach(self) -> tuple[bool, str]:
        """Detach the backend at run time: its close() is called and the threads end."""
        ok, message = self.cache.detach_storage_backend()
        return bool(ok), str(message)

    def close(self) -> None:
        """Detach the backend and free the host memory."""
        self.cache.shutdown()
        self.cache.release_host_resources()

    def __enter__(self) -> Tree:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _alloc(self, count: int) -> torch.Tensor:
        indices: torch.Tensor = self.allocator.alloc(count)
        return indices

    def _kv(self, indices: torch.Tensor) -> list[Place]:
        """Keys and values of tokens, in every layer."""
        return [(buffer, indices) for buffer in kv_buffers(self.pool)]

    def _beside(self, fresh: torch.Tensor, params: Any) -> list[Place]:
        """What an insertion has beside KV; a subclass completes its parameters too."""
        return []

    def _state(self, node: Any, indices: torch.Tensor) -> list[Place]:
        """What a prompt that ends in a node has on the device beside KV."""
        return []

    def _request(self) -> Any:
        """A request that a load needs where each has a state of its own."""
        return None

    def _device_indices(self, ids: array[int]) -> torch.Tensor:
        matched = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(ids)))
        indices: torch.Tensor = self.cache.path_device_indices(matched.last_device_node)
        return indices

    def _pump(self, done: Callable[[], bool], what: str, wait_s: float = WAIT_S) -> None:
        """The scheduler's loop, which takes the acknowledgements, until something is done."""
        end = time.monotonic() + wait_s
        while True:
            self.cache.check_hicache_events()
            if done():
                return
            if time.monotonic() > end:
                raise TimeoutError(f"SGLang still waits for {what} after {wait_s:.0f} s")
            time.sleep(0.001)


def server_args(extra_config: Mapping[str, Any], shape: Shape, flags: Flags) -> Any:
    """SGLang's arguments for a backend of ours, published to this process as a scheduler does."""
    args = ServerArgs(
        model_path="dummy",
        served_model_name=flags.model_name,
        device="cpu",
        page_size=shape.page_size,
        hicache_ratio=flags.host_ratio,
        hicache_io_backend="direct" if shape.layout == "page_first_direct" else "kernel",
        hicache_mem_layout=shape.layout,
        hicache_write_policy=flags.write_policy,
        hicache_host_memory_mode=flags.host_memory_mode,
        hicache_storage_backend=flags.storage_backend,
        hicache_storage_backend_extra_config=json.dumps(dict(extra_config)),
        hicache_storage_prefetch_policy=flags.prefetch_policy,
    )
    args._mamba_cache_chunk_size = 64  # a dummy model has no configuration to take it from
    set_global_server_args_for_scheduler(args)
    return args


def kv_buffers(pool: Any) -> list[torch.Tensor]:
    """The buffers of a pool of keys and values as bytes, each (tokens, ...)."""
    split = hasattr(pool, "k_buffer")
    buffers = pool.k_buffer + pool.v_buffer if split else pool.kv_buffer
    return [buffer.view(torch.uint8) for buffer in buffers]


def device_pool(shape: Shape) -> Any:
    """SGLang's pool on the device: the CPU here."""
    common = {
        "size": shape.tokens,
        "page_size": shape.page_size,
        "dtype": shape.dtype,
        "layer_num": shape.layers,
        "device": "cpu",
        "enable_memory_saver": False,
        "start_layer": shape.first_layer,
        "end_layer": shape.first_layer + shape.layers - 1,
    }
    if shape.kind == "mha":
        return MHATokenToKVPool(**common, head_num=shape.heads, head_dim=shape.head_dim)
    return MLATokenToKVPool(**common, kv_lora_rank=shape.head_dim, qk_rope_head_dim=16)
