"""SGLang's host pools on CPU: memory is not pinned, and torch copies between device and host.

Nothing else is touched: controller, threads, tree, keys and the storage path are SGLang's own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import torch

_done = False


def apply() -> None:
    """Patch the classes of this process, once; every process of a server calls it as a plugin."""
    global _done
    if _done:
        return
    _done = True
    from sglang.srt.mem_cache.pool_host import base, common, dsa, mamba, mha, mla

    base.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # small pools need no 10 GB beside them
    _unpin(base.HostKVCache)
    common._cuda_host_register = common._cuda_host_unregister = lambda *_args, **_kwargs: None
    for pool, layers in (
        (mha.MHATokenToKVPoolHost, _mha_layer),
        (mla.MLATokenToKVPoolHost, _mla_layer),
        (dsa.DSAIndexerPoolHost, _indexer_layer),
    ):
        _copy_by_torch(pool, layers)
    _copy_states_by_torch(mamba.MambaPoolHost)
    _attend_to_latents()
    if not hasattr(torch.cpu.Stream, "synchronize"):
        torch.cpu.Stream.synchronize = lambda _stream: None


def _attend_to_latents() -> None:
    """MLA by torch: its attention reads what the cache holds, latents, so prompts must too."""
    from sglang.srt.models.deepseek_common import attention_backend_handler as handlers

    handlers.AttentionBackendRegistry.register(
        "torch_native", lambda _attention, _batch: handlers.AttnForwardMethod.MLA
    )


def _unpin(pool: Any) -> None:
    construct = pool.__init__

    @functools.wraps(construct)
    def unpinned(self: Any, *args: Any, **kwargs: Any) -> None:
        construct(self, *args, **{**kwargs, "pin_memory": False})

    pool.__init__ = unpinned


Copy = tuple[torch.Tensor, torch.Tensor]  # of one layer: the host's pages, the device's rows


def _pages(buffer: torch.Tensor, layout: str, layer: int, page_size: int) -> torch.Tensor:
    """One layer of a host buffer as (pages, page_size, ...), a view."""
    if layout == "page_head":
        return buffer[:, :, :, layer].transpose(1, 2)
    rows = buffer[layer] if layout == "layer_first" else buffer[:, layer]
    return rows if layout == "page_first_direct" else rows.unflatten(0, (-1, page_size))


def _mha_layer(pool: Any, layer: int) -> Iterator[Copy]:
    for host, device in (
        (pool.k_buffer, pool.device_k_buffers),
        (pool.v_buffer, pool.device_v_buffers),
    ):
        yield _pages(host, pool.layout, layer, pool.page_size), device[layer]


def _mla_layer(pool: Any, layer: int) -> Iterator[Copy]:
    yield (
        _pages(pool.kv_buffer, pool.layout, layer, pool.page_size),
        pool.device_kv_buffers[layer],
    )


def _indexer_layer(pool: Any, layer: int) -> Iterator[Copy]:
    """The indexer keeps whole pages, on the device too."""
    host = pool.index_k_with_scale_buffer
    rows = host[layer] if pool.layout == "layer_first" else host[:, layer, 0]
    yield rows, pool.packed_device_index_buffers[layer]


def _copy_by_torch(pool: Any, layers: Any) -> None:
    whole_pages = layers is _indexer_layer

    def places(self: Any, host: torch.Tensor, device: torch.Tensor) -> tuple[Any, torch.Tensor]:
        if whole_pages:
            return tuple(part[:: self.page_size] // self.page_size for part in (host, device))
        return (host // self.page_size, host % self.page_size), device

    def load(
        self: Any,
        _device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        layer_id: int,
        _io_backend: str,
        *,
        is_draft: bool = False,
    ) -> None:
        if not is_draft and not 0 <= layer_id < self.target_layer_num:
            return
        at_host, at_device = places(self, host_indices, device_indices)
        for host, device in layers(self, layer_id):
            device[at_device] = host[at_host]

    def backup(
        self: Any,
        _device_pool: Any,
        host_indices: torch.Tensor,
        device_indices: torch.Tensor,
        _io_backend: str,
    ) -> None:
        at_host, at_device = places(self, host_indices, device_indices)
        for layer in range(self.layer_num):
            for host, device in layers(self, layer):
                host[at_host] = device[at_device]

    pool.load_to_device_per_layer = load
    pool.backup_from_device_all_layer = backup


def _copy_states_by_torch(pool: Any) -> None:
    """States of linear attention, one slot each: (layers, 1, state) at a page_first host."""

    def copy(
        src: torch.Tensor,
        dst: torch.Tensor,
        src_indices: torch.Tensor,
        dst_indices: torch.Tensor,
        *_: Any,
    ) -> None:
        dst[dst_indices] = src[src_indices]

    def copy_to_layer(
        src: torch.Tensor,
        dst: torch.Tensor,
        src_indices: torch.Tensor,
        dst_indices: torch.Tensor,
        layer_id: int,
        **_options: Any,
    ) -> None:
        dst[dst_indices] = src[src_indices, layer_id, 0]

    def copy_all_layers(
        src_layers: torch.Tensor,
        dst: torch.Tensor,
        src_indices: torch.Tensor,
        dst_indices: torch.Tensor,
        num_layers: int,
        **_options: Any,
    ) -> None:
        for layer in range(num_layers):
            dst[dst_indices, layer, 0] = src_layers[layer][src_indices]

    pool._copy_tensor = staticmethod(copy)
    pool._copy_tensor_pf_lf = staticmethod(copy_to_layer)
    pool._copy_tensor_all_layers_lf_pf = staticmethod(copy_all_layers)
