"""Which namespace the pages of a host pool belong to. An unknown part is an error, never a guess.

What the configuration's section `identity` says of the model goes before what SGLang says; of
the pool's bytes both must say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_backends.identity import Namespace
from hicache_storage.config import Config
from hicache_storage.config.model_files import ModelFacts, read_model, weights_revision
from hicache_storage.sglang.engine import Engine
from hicache_storage.sglang.host_pages import page_slots

KV = "kv"
MAMBA = "mamba"
_DTYPES = {"half": "float16", "fp16": "float16", "bf16": "bfloat16"}
_DTYPES |= {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2", "float": "float32"}
_CHANGES_VALUES = ("quantization", "json_model_override_args", "quantization_param_path")
"""Launch arguments that change the numbers in a page, though the model's files are the same."""


@dataclass(frozen=True)
class Shard:
    """This rank's place. Ranks count from 0."""

    tp_rank: int
    tp_size: int
    pp_rank: int
    pp_size: int
    cp_rank: int
    cp_size: int
    replicated: bool  # every TP rank holds the same KV: MLA

    @classmethod
    def of(cls, storage_config: Any) -> Shard:
        """The place that SGLang's storage configuration names; older ones name less."""

        def said(name: str, default: int) -> int:
            return int(getattr(storage_config, name, None) or default)

        return cls(
            said("tp_rank", 0),
            said("tp_size", 1),
            said("pp_rank", 0),
            said("pp_size", 1),
            said("attn_cp_rank", 0),
            said("attn_cp_size", 1),
            bool(getattr(storage_config, "is_mla_model", False)),
        )

    @property
    def writes(self) -> bool:
        """Whether this rank stores the KV pages that all ranks hold."""
        return not self.replicated or self.tp_rank == 0

    @property
    def rank(self) -> int:
        """A number of its own within the server."""
        return (self.pp_rank * self.cp_size + self.cp_rank) * self.tp_size + self.tp_rank


@dataclass(frozen=True)
class Model:
    """`kv_heads`: of the whole model, 0 if unknown. `draft_revision`: "" without a draft model,
    None where there is one whose files can't be found."""

    name: str
    revision: str
    kv_heads: int
    draft_revision: str | None


def model_of(config: Config, engine: Engine, served_name: str | None) -> Model:
    """The model that is served. Raises ConfigError where its name or revision is unknown."""
    identity = config.identity
    facts = read_model(identity.model_file) if identity.model_file else None
    path = str(engine.arg("model_path") or served_name or "")
    if facts is None and (files := model_files(path, engine.arg("revision"))) is not None:
        facts = _facts(files)
    revision = identity.revision or (facts.revision if facts else None)
    name = identity.model or _name(served_name or path)
    if not name:
        raise ConfigError("identity.model is missing: SGLang doesn't say what model it serves")
    if not revision:
        raise ConfigError(
            f"identity.revision is missing: the files of the model {path!r} aren't found here, so "
            "that its pages could be mixed up with those of other weights"
        )
    heads = facts.config.get("num_key_value_heads") if facts else None
    return Model(
        name, revision, heads if isinstance(heads, int) else 0, _draft_revision(config, engine)
    )


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
    marks = [f"sglang {engine.version or 'unknown'}"]
    marks += [f"{arg} {engine.arg(arg)}" for arg in _CHANGES_VALUES if engine.arg(arg)]
    marks += [f"tp {shard.tp_rank}/{shard.tp_size}"] * whose
    marks += [f"pp {shard.pp_rank}/{shard.pp_size}"] * (shard.pp_size > 1)
    marks += [config.identity.salt] if config.identity.salt else []
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
        _compare(config, values)
    values["layout"] = f"{layout}, flat" if flat else layout
    return Namespace(
        model=model.name,
        revision=_revision(model, pool, name),
        tenant=config.global_kvmanager.namespace,
        salt="; ".join(marks),
        **values,
    )


def model_files(path: str, revision: str | None) -> Path | None:
    """Where the files of a model lie: a path itself, or a download of the Hugging Face hub."""
    if not path:
        return None
    place = Path(path).expanduser()
    if place.exists():
        return place
    try:
        from huggingface_hub import snapshot_download  # SGLang has brought it along

        return Path(snapshot_download(path, revision=revision, local_files_only=True))
    except Exception:
        return None


def _facts(files: Path) -> ModelFacts | None:
    if files.is_file():
        return ModelFacts(files.stem, weights_revision([files]), "", {})
    return read_model(str(files)) if (files / "config.json").is_file() else None


def _name(served: str) -> str:
    """The served name; of a path its last part, so that hosts may keep it in different places."""
    return Path(served).expanduser().resolve().name if Path(served).exists() else served


def _draft_revision(config: Config, engine: Engine) -> str | None:
    if config.identity.draft_revision:
        return config.identity.draft_revision
    path = engine.arg("speculative_draft_model_path")
    if not path or path == engine.arg("model_path"):
        return ""
    files = model_files(str(path), engine.arg("speculative_draft_model_revision"))
    facts = _facts(files) if files else None
    return facts.revision if facts else None


def _revision(model: Model, pool: Any, name: str) -> str:
    """The revision of all weights that a page of this pool comes from."""
    layers = int(getattr(pool, "layer_num", 0) or 0)
    packed = layers > int(getattr(pool, "target_layer_num", layers) or layers)
    if not (packed or name.startswith("draft")) or model.draft_revision == "":
        return model.revision
    if model.draft_revision is None:
        raise ConfigError(
            f"identity.draft_revision is missing: the pool {name!r} holds pages of a draft model "
            "whose files aren't found here"
        )
    return f"{model.revision}, draft {model.draft_revision}"


def _dtype(config: Config, engine: Engine, pool: Any, name: str) -> str:
    """The type of the numbers. A pool keeps the 8-bit floats as uint8 and forgets which."""
    held = str(pool.dtype).removeprefix("torch.")
    wanted = engine.arg("kv_cache_dtype")
    said = _DTYPES.get(str(wanted), str(wanted)) if wanted not in (None, "auto") else None
    configured = config.identity.kv_dtype
    if configured is not None:
        configured = configured.removeprefix("torch.")
        configured = _DTYPES.get(configured, configured)
    known = (said or configured) if held == "uint8" else held
    if name != KV:
        return known or held
    if known is None:
        raise ConfigError(
            "identity.kv_dtype is missing: the KV cache is of 8-bit numbers and SGLang doesn't "
            "say which (--kv-cache-dtype)"
        )
    if configured not in (None, known):
        raise ConfigError(
            f"identity.kv_dtype is {config.identity.kv_dtype!r}, but SGLang's KV cache is {known}"
        )
    return known


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
