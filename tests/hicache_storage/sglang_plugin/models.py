"""Small model directories, with weights in the format that SGLang loads."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

QWEN: dict[str, Any] = {
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 16,
    "torch_dtype": "bfloat16",
}
TENSORS = {f"layers.{n}.{part}": 16_384 for n in range(4) for part in ("q", "k", "v", "mlp")}


def make_model(
    path: Path,
    *,
    config: Mapping[str, Any] = QWEN,
    tensors: Mapping[str, int] = TENSORS,
    changed: str = "",
    index: str = "{}",
) -> Path:
    """A model at `path`; `changed` names the tensor that isn't as it is in the others."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    (path / "model.safetensors.index.json").write_text(index)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, size in tensors.items():
        header[name] = {
            "dtype": "U8",
            "shape": [size],
            "data_offsets": [len(data), len(data) + size],
        }
        data += bytes([len(name) + (name == changed)]) * size
    head = json.dumps(header).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)
    return path
