"""What the plugin takes SGLang's objects to say of themselves, asked of SGLang's own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from hicache_storage.sglang.engine import running_engine
from hicache_storage.sglang.host_pages import HostPages
from hicache_storage.sglang.shard import Shard
from tests.sglang.harness.tree import Flags, Ranks, Shape, Tree, server_args
from tests.sglang.plugin import extra_config
from tests.sglang.test_round_trip import SHAPES

ASKED = (
    "model_path",
    "revision",
    "quantization",
    "quantization_param_path",
    "json_model_override_args",
    "load_format",
    "kv_cache_dtype",
    "enable_lora",
    "lora_paths",
    "speculative_draft_model_path",
    "speculative_draft_model_revision",
    "speculative_draft_model_quantization",
    "speculative_draft_kv_cache_dtype",
    "dist_init_addr",
    "port",
    "attn_cp_size",
)
"""Arguments that the plugin asks for, all of which this release has."""


def test_the_launch_arguments_are_told() -> None:
    args = server_args({}, Shape(page_size=64), Flags())
    engine = running_engine()
    assert engine.args is not None
    assert set(ASKED) <= set(engine.args)
    assert (engine.arg("model_path"), engine.arg("page_size")) == ("dummy", 64)
    assert engine.server_name.endswith(f"-{args.port}")
    assert not engine.serves_lora
    assert engine.hashes_are_salted


@pytest.mark.parametrize(("kind", "layout"), SHAPES)
def test_a_host_pool_says_what_its_pages_are(tmp_path: Path, kind: str, layout: str) -> None:
    shape = Shape(kind=kind, layout=layout, first_layer=2)
    with Tree(extra_config(tmp_path), shape) as server:
        pool = server.backend.mem_pool_host
        [store] = [pages.store for pages in server.backend._pools.all()]
        pages = HostPages.of(pool)
        assert pages is not None
        chosen = np.random.default_rng(0).permutation(pool.size // 16)[:100]
        indices = torch.from_numpy((chosen[:, None] * 16 + np.arange(16)).ravel())
        found = pages(indices, len(chosen), writable=True)
        pointers, sizes = pool.get_page_buffer_meta(indices)
        assert pages._map is not None, "computed, not asked for"
        assert found.addresses.ravel().tolist() == pointers
        assert found.sizes.ravel().tolist() == sizes
    namespace = store.namespace
    assert namespace.layers == (2, 6)
    assert namespace.kv_heads == ((0, 2) if kind == "mha" else (0, 0))
    assert (namespace.layout, namespace.kv_dtype) == (layout, "bfloat16")
    assert namespace.page_bytes == pages.page_bytes == pool.size_per_token * 16


@pytest.mark.parametrize(
    ("ranks", "tp", "cp"),
    [
        (Ranks(5, 8, cp_size=2), (1, 4), (1, 2)),
        (Ranks(3, 8, cp_size=2), (3, 4), (0, 2)),
        (Ranks(5, 8, cp_size=2, dp_size=2), (1, 2), (0, 2)),
        (Ranks(7, 8, dp_size=2), (3, 4), (0, 1)),
        (Ranks(2, 4), (2, 4), (0, 1)),
    ],
)
def test_the_ranks_that_heads_are_split_over_are_attentions(
    tmp_path: Path, ranks: Ranks, tp: tuple[int, int], cp: tuple[int, int]
) -> None:
    flags = Flags(storage_backend="file")
    with ranks.applied(), Tree({"file_storage_path": str(tmp_path)}, ranks=ranks, flags=flags) as t:
        place = Shard.of(t.controller.storage_config, running_engine())
    assert ((place.tp_rank, place.tp_size), (place.cp_rank, place.cp_size)) == (tp, cp)
    assert place.dp_rank == ranks.tp_rank // (ranks.tp_size // ranks.dp_size)
