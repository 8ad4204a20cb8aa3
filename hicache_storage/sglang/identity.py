"""Which namespace the pages of a host pool belong to. An unknown part is an error, never a guess.

What the configuration's section `identity` says of the model goes before what SGLang says; of
the pool's bytes both must say the same.
"""

from __future__ import annotations

from typing import Any

from hicache_backends.errors import ConfigError
from hicache_backends.identity import Namespace
from hicache_storage.config import Config
from hicache_storage.sglang.engine import Engine
from hicache_storage.sglang.host_pages import page_slots
from hicache_storage.sglang.model import Model
from hicache_storage.sglang.shard import Shard

KV = "kv"
MAMBA = "mamba"
_DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16"}
_DTYPES |= {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "float": "float32"}
_CHANGES_VALUES = (
    "quantization",
    "json_model_override_args",
    "quantization_param_path",
    "torchao_config",
    "modelopt_quant",
    "rl_quant_profile",
    "load_format",
)
"""Launch arguments that change the numbers in a page, though the model's files are the same."""
_CHANGES_NOTHING = (None, "", "{}", "auto")
_CHANGES_DRAFTS = ("speculative_draft_model_quantization", "speculative_draft_load_format")
_PARTS_OF_OTHER_TYPES = ("conv_dtype", "temporal_dtype")
_DRAFT_LAYERS = ("mtp_draft_buffer_infos", "mtp_draft_device_pools")


def namespace_of(
    config: Config,
    engine: Engine,
    model: Model,
    shard: Shard,
    pool: Any,
    *,
    name: str,
    page_bytes: int,
    flat: bool,
) -> Namespace:
    """The namespace of one pool's pages on this rank.

    `name`: SGLang's for the pool. `flat`: pages are the pool's flat copies, whose bytes can be
    in another order. Raises ConfigError for an unknown part, and where the configuration differs.
    """
    heads, whose = _heads(model, shard, pool, name)
    first = int(getattr(pool, "start_layer", 0) or 0)
    layout = str(pool.layout)
    values: dict[str, Any] = {
        "kv_dtype": _dtype(config, engine, pool, name),
        "layout": layout,
        "page_tokens": page_slots(pool),
        "page_bytes": page_bytes,
        "layers": (first, first + _layers(pool)),
        "kv_heads": heads,
        "token_shard": (shard.cp_rank, shard.cp_size),
        "pool": name,
    }
    if name == KV:
        _require_whole_pages(engine, pool, page_bytes)
        _compare(config, values)
    own_format = getattr(pool, "storage_format_tag", None)
    values["layout"] = ", ".join([layout] + [str(own_format)] * bool(own_format) + ["flat"] * flat)
    return Namespace(
        model=model.name,
        revision=_revision(model, pool, name),
        tenant=config.global_kvmanager.namespace,
        salt="; ".join(_marks(config, engine, shard, name, whose)),
        **values,
    )


def _marks(config: Config, engine: Engine, shard: Shard, name: str, whose: bool) -> list[str]:
    """What else tells pages apart. `whose`: each tensor-parallel rank has its own."""
    marks = [f"sglang {engine.version or 'unknown'}"] + ["hip"] * engine.hip
    changes = _CHANGES_VALUES + (_CHANGES_DRAFTS if _drafts(name) else ())
    marks += [f"{arg} {value}" for arg in changes if (value := _told(engine, arg))]
    marks += [f"tp {shard.tp_rank}/{shard.tp_size}"] * whose
    marks += [f"pp {shard.pp_rank}/{shard.pp_size}"] * (shard.pp_size > 1)
    marks += [config.identity.salt] if config.identity.salt else []
    return marks


def _told(engine: Engine, arg: str) -> str:
    value = engine.arg(arg)
    return "" if value in _CHANGES_NOTHING else str(value)


def _drafts(name: str) -> bool:
    """Whether a pool is a draft model's."""
    return name.startswith("draft")


def _revision(model: Model, pool: Any, name: str) -> str:
    """The revision of all weights that a page of this pool comes from."""
    layers = int(getattr(pool, "layer_num", 0) or 0)
    packed = layers > int(getattr(pool, "target_layer_num", layers) or layers)
    packed = packed or any(getattr(pool, layers, ()) for layers in _DRAFT_LAYERS)
    if not (packed or _drafts(name)) or model.draft_revision == "":
        return model.revision
    if model.draft_revision is None:
        raise ConfigError(
            f"identity.draft_revision is missing: the pool {name!r} holds pages of a draft model "
            "whose files aren't found here"
        )
    return f"{model.revision}, draft {model.draft_revision}"


def _dtype(config: Config, engine: Engine, pool: Any, name: str) -> str:
    """The type of the numbers, of a pool of several types all of them."""
    held = _named(pool.dtype)
    wanted = _told(engine, "kv_cache_dtype")
    if _drafts(name):
        wanted = _told(engine, "speculative_draft_kv_cache_dtype") or wanted
    configured = config.identity.kv_dtype
    known = _named(wanted or configured) if held == "uint8" else held
    if name != KV:
        parts = [_named(getattr(pool, part, "")) for part in _PARTS_OF_OTHER_TYPES]
        return "+".join(filter(None, parts)) or known or held
    if not known:
        raise ConfigError(
            "identity.kv_dtype is missing: the KV cache is of 8-bit numbers and SGLang doesn't "
            "say which (--kv-cache-dtype)"
        )
    if configured is not None and _named(configured) != known:
        raise ConfigError(f"identity.kv_dtype is {configured!r}, but SGLang's KV cache is {known}")
    return known


def _named(dtype: Any) -> str:
    """A type's own name, "" for none. A pool keeps 8-bit floats as uint8 and forgets which."""
    name = str(dtype or "").removeprefix("torch.")
    return _DTYPES.get(name, name)


def _layers(pool: Any) -> int:
    return int(getattr(pool, "num_mamba_layers", 0) or getattr(pool, "layer_num", 0) or 0)


def _heads(model: Model, shard: Shard, pool: Any, name: str) -> tuple[tuple[int, int], bool]:
    """The KV heads held, and whether the rank must be told apart by its number instead."""
    held = int(getattr(pool, "head_num", 0) or 0)
    if name == MAMBA:
        return (0, 0), shard.tp_size > 1
    if not held:
        if shard.replicated or shard.tp_size == 1:
            return (0, 0), False
        return (0, 0), True
    if shard.tp_size == 1:
        return (0, held), False
    if shard.replicated:
        raise ConfigError(
            f"the pool {name!r} is split over tensor-parallel ranks, but beside an MLA model "
            "SGLang stores it on the first rank alone: nothing could ever be restored"
        )
    total = model.kv_heads if name == KV else 0
    if total and total % shard.tp_size == 0 and held == total // shard.tp_size:
        return (shard.tp_rank * held, (shard.tp_rank + 1) * held), False
    if total and shard.tp_size % total == 0 and held == 1:
        head = shard.tp_rank // (shard.tp_size // total)  # replicas of a head hold the same bytes
        return (head, head + 1), False
    return (0, held), True


def _require_whole_pages(engine: Engine, pool: Any, page_bytes: int) -> None:
    """Raises ConfigError for a pool with more to a page than it hands over: the sparse indexer
    of DeepSeek V3.2 before it had a pool of its own. Restored pages would lack it, unnoticed."""
    whole = int(getattr(pool, "size_per_token", 0) or 0) * page_slots(pool)
    if whole > page_bytes:
        raise ConfigError(
            f"SGLang {engine.version} hands over {page_bytes} of the {whole} bytes of each page: "
            "restored pages would be damaged; use a newer SGLang for this model"
        )


def _compare(config: Config, values: dict[str, Any]) -> None:
    """Raises ConfigError where the configuration says otherwise of the KV pool."""
    keys = ("layout", "page_bytes", "layers", "kv_heads", "token_shard", "pool")
    said = {key: (f"identity.{key}", getattr(config.identity, key)) for key in keys}
    said["page_tokens"] = (f"{config.backend}.page_size", config.section.page_size)
    for name, (key, configured) in said.items():
        if configured is not None and configured != values[name]:
            raise ConfigError(
                f"{key} is {configured!r}, but SGLang's pages have {values[name]!r}: change the "
                "configuration, or SGLang's launch flags"
            )
