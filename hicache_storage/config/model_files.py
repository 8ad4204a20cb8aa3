"""What a model's own files say about its KV pages."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
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
_WEIGHT_FILES = ("*.safetensors", "*.bin", "*.gguf", "*.pt", "*.pth")
_SAMPLES, _SAMPLE_BYTES = 4096, 4096
"""Of a model's weights at most so many places are read."""
_PLAIN_SAMPLES = 256
_MAX_HEADER_BYTES = 100_000_000  # the format's own limit


@dataclass(frozen=True)
class ModelFacts:
    """`name`, `revision` (see `weights_revision`) and `dtype` of a model.

    `weight_files`: how many of them the revision is made from; 0 where only its `config` is here.
    """

    name: str
    revision: str
    dtype: str
    config: Mapping[str, Any]
    weight_files: int = 0

    @property
    def kv_heads(self) -> int:
        """KV heads of every attention layer, 0 where that isn't one number."""
        said = [v for key, v in self.config.items() if key.endswith("key_value_heads")]
        known = all(isinstance(heads, int) and heads == said[0] for heads in said)
        return int(said[0]) if said and known else 0

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
    weights = _weight_files(file.parent)
    indexes = [index for name in _WEIGHT_INDEXES if (index := file.with_name(name)).is_file()]
    text = config.get("text_config")
    inner = {**config, **text} if isinstance(text, dict) else config
    dtype = str(inner.get("torch_dtype") or inner.get("dtype") or "bfloat16")
    name = str(config.get("_name_or_path") or file.resolve().parent.name)
    revision = weights_revision(weights, whole=[file, *indexes])
    return ModelFacts(name, revision, dtype.removeprefix("torch."), inner, len(weights))


def weights_revision(weights: Sequence[Path], whole: Sequence[Path] = ()) -> str:
    """A name for what is in these files, the same wherever they lie. Raises ConfigError.

    Files of `whole` are hashed; of `weights`, which are large, the sizes and samples of their
    tensors: a fine-tuned model has the same names, shapes and index as the one it came from, and
    may differ from it in some tensors only.
    """
    digest = hashlib.blake2b(digest_size=16)
    for file in whole:
        digest.update(hashlib.blake2b(_read(file, 0, -1)).digest())
    samples: list[tuple[bytes, Path, int]] = []
    for file in weights:
        size = _size(file)
        digest.update(hashlib.blake2b(f"{file.name} {size}".encode()).digest())
        samples += [(_order(file, place), file, place) for place in _places(file, size)]
    # too many tensors: those whose hashes come first, which follows no pattern of a model's own
    for _, file, place in sorted(samples)[:_SAMPLES]:
        digest.update(_read(file, place, _SAMPLE_BYTES))
    return f"files-{digest.hexdigest()}"


def _weight_files(directory: Path) -> list[Path]:
    """The files that a server loads: of the first kind there is, as others are copies of it."""
    kinds = (sorted(directory.glob(kind)) for kind in _WEIGHT_FILES)
    return next((files for files in kinds if files), [])


def _places(file: Path, size: int) -> list[int]:
    """Where to sample a file: in the middle of each tensor, or all over it."""
    tensors = _tensors(file) if file.suffix == ".safetensors" else ()
    if tensors:
        middles = {(low + high - min(high - low, _SAMPLE_BYTES)) // 2 for low, high in tensors}
        return [0, *sorted(middles)]
    last = max(0, size - _SAMPLE_BYTES)
    return sorted({last * n // (_PLAIN_SAMPLES - 1) for n in range(_PLAIN_SAMPLES)})


def _tensors(file: Path) -> list[tuple[int, int]]:
    """From and to of each tensor in a safetensors file; none where its header says none."""
    header_bytes = int.from_bytes(_read(file, 0, 8), "little")
    if header_bytes > _MAX_HEADER_BYTES:
        return []
    try:
        header = json.loads(_read(file, 8, header_bytes))
        spans = [at["data_offsets"] for name, at in header.items() if name != "__metadata__"]
        return [(8 + header_bytes + int(low), 8 + header_bytes + int(high)) for low, high in spans]
    except (AttributeError, KeyError, TypeError, ValueError):
        return []


def _order(file: Path, place: int) -> bytes:
    return hashlib.blake2b(f"{file.name} {place}".encode(), digest_size=16).digest()


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError as error:  # a link to a file that isn't there, in a download cut short
        raise ConfigError(f"{file}: {error.strerror}") from None


def _read(file: Path, start: int, size: int) -> bytes:
    try:
        with file.open("rb") as stream:
            stream.seek(start)
            return stream.read(size)
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
