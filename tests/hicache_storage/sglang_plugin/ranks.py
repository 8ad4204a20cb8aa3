"""What a host pool, an engine and a rank say of themselves, for tests of what is made of it."""

from __future__ import annotations

import types
from typing import Any

from hicache_backends.identity import Namespace
from hicache_storage.config import load_config
from hicache_storage.sglang.engine import Engine
from hicache_storage.sglang.identity import KV, namespace_of
from hicache_storage.sglang.model import Model
from hicache_storage.sglang.shard import Shard

MODEL = Model("qwen", "r1", 4, "")
ONE = Shard(0, 1, 0, 1, 0, 1, False)


def pool(**said: Any) -> Any:
    """A pool of 4 layers and 4 heads of 16 16-bit numbers, but for what is said."""
    return types.SimpleNamespace(
        **{
            "layout": "page_first",
            "dtype": "torch.bfloat16",
            "page_size": 16,
            "start_layer": 0,
            "layer_num": 4,
            "target_layer_num": 4,
            "head_num": 4,
            **said,
        }
    )


def engine(version: str = "0.5.23", *, splits: bool = False, **args: Any) -> Engine:
    """An engine that was launched with these arguments; `splits`: with data-parallel attention."""
    told = {"model_path": "/models/qwen", "kv_cache_dtype": "auto", **args}
    return Engine(version, told, splits)


def told(*, splits: bool = False, **said: Any) -> Shard:
    """The place of a rank whose storage configuration says this."""
    return Shard.of(types.SimpleNamespace(**said), engine(splits=splits))


def namespace(
    of: Any = None,
    *,
    shard: Shard = ONE,
    by: Engine | None = None,
    model: Model = MODEL,
    name: str = KV,
    page_bytes: int | None = None,
    flat: bool = False,
    **config: Any,
) -> Namespace:
    """The namespace of such a pool's pages."""
    of = pool() if of is None else of
    layers = getattr(of, "num_mamba_layers", None) or of.layer_num
    heads = getattr(of, "head_num", 1)
    return namespace_of(
        load_config({"storage_backend": "memory", **config}, env={}),
        by or engine(),
        model,
        shard,
        of,
        name=name,
        page_bytes=page_bytes or 2 * layers * heads * 16 * of.page_size * 2,
        flat=flat,
    )
