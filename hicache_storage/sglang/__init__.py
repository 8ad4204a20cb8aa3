"""L3 of an unmodified SGLang: `--hicache-storage-backend dynamic` with the class `HiCacheL3`.

`hicache-storage sglang-args` prints the launch flags.
"""

from __future__ import annotations

from typing import Any

__all__ = ["HiCacheL3"]


def __getattr__(name: str) -> Any:
    """The class on first use: what else is here does without SGLang."""
    if name == "HiCacheL3":
        from hicache_storage.sglang.backend import HiCacheL3

        return HiCacheL3
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
