"""What a model's own files say about its KV pages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError

_DTYPE_BYTES = {
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "half": 2,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
_WEIGHT_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


@dataclass(frozen=True)
class ModelFacts:
    """`name`, `revision` (a hash of config.json and the weight index) and `dtype` of a model."""

    name: str
    revision: str
    dtype: str
    config: Mapping[str, Any]

    def kv_bytes_per_token(self, kv_dtype: str) -> int:
        """Bytes of one token's keys and values over all layers and heads."""
        number_bytes = _DTYPE_BYTES.get(kv_dtype.removeprefix("torch."))
        if number_bytes is None:
            known = ", ".join(_DTYPE_BYTES)
            raise ConfigError(f"the size of kv_dtype {kv_dtype!r} is unknown; known are {known}")
        layers = self._number("num_hidden_layers")
        if self.config.get("kv_lora_rank"):  # MLA keeps one latent and one rotary part
            return (
                layers
                * number_bytes
                * (self._number("kv_lora_rank") + self._number("qk_rope_head_dim"))
            )
        heads = self._number("num_attention_heads")
        kv_heads = self._number("num_key_value_heads", heads)
        head_dim = self._number("head_dim", self.config.get("hidden_size", 0) // heads)
        return 2 * layers * kv_heads * head_dim * number_bytes

    def _number(self, key: str, default: int = 0) -> int:
        value = self.config.get(key) or default
        if not isinstance(value, int) or value < 1:
            raise ConfigError(f"identity.model_config: no usable {key!r}; set identity.page_bytes")
        return value


def read_model(path: str) -> ModelFacts:
    """The facts in a `config.json`, or in the directory that holds one. Raises ConfigError."""
    file = Path(path).expanduser()
    file = file / "config.json" if file.is_dir() else file
    try:
        raw = file.read_bytes()
        config = json.loads(raw)
    except OSError as error:
        raise ConfigError(f"identity.model_config: {file}: {error.strerror}") from None
    except ValueError as error:
        raise ConfigError(f"identity.model_config: {file}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ConfigError(f"identity.model_config: {file}: not an object")
    digest = hashlib.blake2b(raw, digest_size=16)
    for name in _WEIGHT_INDEXES:
        index = file.with_name(name)
        if index.is_file():
            digest.update(hashlib.blake2b(index.read_bytes()).digest())
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, dict) else config
    dtype = str(inner.get("torch_dtype") or inner.get("dtype") or "bfloat16")
    name = str(config.get("_name_or_path") or file.resolve().parent.name)
    return ModelFacts(name, f"files-{digest.hexdigest()}", dtype.removeprefix("torch."), inner)
