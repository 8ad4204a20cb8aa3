"""Trees with pools beside KV: sliding windows, states of linear attention, indexers, drafts."""

from __future__ import annotations

from array import array
from typing import Any

import torch
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.environ import envs
from sglang.srt.managers.schedule_batch import Req
from sglang.srt.mem_cache.allocator import TokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.hybrid_cache.hybrid_pool_assembler import build_hicache_draft_sidecars
from sglang.srt.mem_cache.memory_pool import (
    DSATokenToKVPool,
    HybridLinearKVPool,
    HybridReqToTokenPool,
    MHATokenToKVPool,
    ReqToTokenPool,
)
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components.base import ComponentType
from sglang.srt.sampling.sampling_params import SamplingParams

from tests.sglang.harness.tree import Place, Tree, kv_buffers

FULL_LAYERS, OTHER_LAYERS = [1, 3], [0, 2]


class SlidingWindowTree(Tree):
    """Full attention in two layers, a window of 32 tokens in two: only its pages come back."""

    window = 32

    def _make_pools(self) -> Any:
        shape = self.shape
        common = {"size": shape.tokens, "size_swa": shape.tokens, "page_size": shape.page_size}
        self.pool = SWAKVPool(
            **common,
            dtype=shape.dtype,
            head_num=shape.heads,
            head_dim=shape.head_dim,
            swa_attention_layer_ids=OTHER_LAYERS,
            full_attention_layer_ids=FULL_LAYERS,
            device="cpu",
        )
        self.allocator = SWATokenToKVPoolAllocator(
            **common, dtype=shape.dtype, device="cpu", kvcache=self.pool, need_sort=False
        )
        requests = ReqToTokenPool(
            size=8, max_context_len=shape.tokens, device="cpu", enable_memory_saver=False
        )
        return self._params(
            requests, ComponentType.FULL, ComponentType.SWA, sliding_window_size=self.window
        )

    def _alloc(self, count: int) -> torch.Tensor:
        """Slots of both pools, tied to each other as extending a request does."""
        full: torch.Tensor = self.allocator.full_attn_allocator.alloc(count)
        window = self.allocator.swa_attn_allocator.alloc(count)
        self.allocator.full_to_swa_index_mapping[full] = window
        return full

    def _kv(self, indices: torch.Tensor) -> list[Place]:
        return [(buffer, indices) for buffer in kv_buffers(self.pool.full_kv_pool)]

    def _beside(self, fresh: torch.Tensor, params: Any) -> list[Place]:
        rows = self.allocator.full_to_swa_index_mapping[fresh]
        return [(buffer, rows) for buffer in kv_buffers(self.pool.swa_kv_pool)]

    def _state(self, node: Any, indices: torch.Tensor) -> list[Place]:
        return self._beside(indices[-self.window :], None)


class MambaTree(Tree):
    """Full attention in two layers, a state a prompt in two; pages of 64 tokens."""

    def _make_pools(self) -> Any:
        shape = self.shape
        with envs.SGLANG_MAMBA_SSM_DTYPE.override("bfloat16"):
            state = Mamba2CacheParams(
                shape=Mamba2StateShape.create(
                    tp_world_size=1,
                    intermediate_size=256,
                    n_groups=1,
                    num_heads=2,
                    head_dim=16,
                    state_size=16,
                    conv_kernel=4,
                ),
                layers=OTHER_LAYERS,
            )
        self.requests = HybridReqToTokenPool(
            size=8,
            mamba_size=64,
            mamba_spec_state_size=8,
            max_context_len=shape.tokens,
            device="cpu",
            enable_memory_saver=False,
            cache_params=state,
            mamba_layer_ids=OTHER_LAYERS,
            enable_mamba_extra_buffer=True,
            speculative_num_draft_tokens=3,
        )
        self.pool = HybridLinearKVPool(
            size=shape.tokens,
            dtype=shape.dtype,
            page_size=shape.page_size,
            head_num=shape.heads,
            head_dim=shape.head_dim,
            full_attention_layer_ids=FULL_LAYERS,
            device="cpu",
            enable_memory_saver=False,
            mamba_pool=self.requests.mamba_pool,
        )
        self.allocator = TokenToKVPoolAllocator(
            size=shape.tokens, dtype=shape.dtype, device="cpu", kvcache=self.pool, need_sort=False
        )
        return self._params(
            self.requests,
            ComponentType.FULL,
            ComponentType.MAMBA,
            enable_mamba_extra_buffer=True,
        )

    def _kv(self, indices: torch.Tensor) -> list[Place]:
        return [(buffer, indices) for buffer in kv_buffers(self.pool.full_kv_pool)]

    def _beside(self, fresh: torch.Tensor, params: Any) -> list[Place]:
        params.mamba_value = self._request().kv.mamba_pool_idx.unsqueeze(0)
        return self._slots(params.mamba_value)

    def _state(self, node: Any, indices: torch.Tensor) -> list[Place]:
        slot = self.cache.tree_core.get_component_device_value(node, ComponentType.MAMBA)
        return [] if slot is None else self._slots(slot)

    def _slots(self, slots: torch.Tensor) -> list[Place]:
        cache = self.requests.mamba_pool.mamba_cache
        layers = [layer for state in (*cache.conv, cache.temporal) for layer in state]
        return [(layer.view(torch.uint8), slots) for layer in layers]

    def _request(self) -> Any:
        sampling = SamplingParams(temperature=0, max_new_tokens=1)
        request = Req(
            rid="request",
            origin_input_text="",
            origin_input_ids=array("q"),
            sampling_params=sampling,
        )
        self.requests.alloc([request])
        return request


class IndexerTree(Tree):
    """DeepSeek's sparse attention: latents, and an indexer's keys in pages of 64 tokens."""

    def _device_pool(self) -> Any:
        shape = self.shape
        return DSATokenToKVPool(
            size=shape.tokens,
            page_size=shape.page_size,
            kv_lora_rank=shape.head_dim,
            dtype=shape.dtype,
            qk_rope_head_dim=16,
            layer_num=shape.layers,
            device="cpu",
            index_head_dim=128,
            enable_memory_saver=False,
            kv_cache_dim=shape.head_dim + 16,
        )

    def _beside(self, fresh: torch.Tensor, params: Any) -> list[Place]:
        pages = fresh[:: self.shape.page_size] // self.shape.page_size
        return [(buffer, pages) for buffer in self.pool.index_k_with_scale_buffer]

    def _state(self, node: Any, indices: torch.Tensor) -> list[Place]:
        return self._beside(indices, None)


class DraftTree(Tree):
    """A draft model of one layer beside the target, at the same slots."""

    def _build(self) -> None:
        super()._build()
        shape = self.shape
        self.draft = MHATokenToKVPool(
            size=shape.tokens,
            page_size=shape.page_size,
            dtype=shape.dtype,
            layer_num=1,
            device="cpu",
            enable_memory_saver=False,
            head_num=shape.heads,
            head_dim=shape.head_dim,
        )
        specs, entries = build_hicache_draft_sidecars(
            draft_device_pools=(self.draft,), tree_cache=self.cache
        )
        for spec, entry in zip(specs, entries, strict=True):
            self.cache.register_sidecar_pool(spec, entry)

    def _beside(self, fresh: torch.Tensor, params: Any) -> list[Place]:
        return [(buffer, fresh) for buffer in kv_buffers(self.draft)]

    def _state(self, node: Any, indices: torch.Tensor) -> list[Place]:
        return self._beside(indices, None)
