"""SGLang's `--hicache-storage-backend-extra-config`: its own keys, and a configuration of ours."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_storage.config import Config, load_config
from hicache_storage.config.loading import document_of

SGLANG_KEYS = frozenset(
    {
        "backend_name",
        "module_path",
        "class_name",
        "interface_v1",
        "allocator",
        "prefetch_threshold",
        "prefetch_timeout_base",
        "prefetch_timeout_per_ki_token",
        "prefetch_timeout_max",
        "hicache_storage_pass_prefix_keys",
        "tp_lcm_size",
        "file_storage_path",
    }
)
"""What SGLang's releases read there themselves; some leave their keys to the backend."""
FILE_KEY = "config"
Extra = Mapping[str, Any] | str | bytes | None


def plugin_config(extra: Extra) -> Config:
    """The configuration in an extra config: the file that its `config` names, or its sections.

    Raises ConfigError for an unknown key, and where it has both.
    """
    tree = document_of(extra)[0].tree
    _refuse_misspelt(tree, "the extra config")
    file = tree.get(FILE_KEY)
    if file is None:
        return load_config(extra, others=SGLANG_KEYS)
    if own := sorted(tree.keys() - SGLANG_KEYS - {FILE_KEY}):
        raise ConfigError(
            f"the extra config names the file {file} and has {', '.join(own)} itself: "
            "say it all in one place"
        )
    if not isinstance(file, str):
        raise ConfigError(f"config in the extra config is the path of a file, not {file!r}")
    return file_config(Path(file))


def file_config(file: Path | None) -> Config:
    """The configuration in a file that may have keys of SGLang's at its top level, as
    `sglang-args` passes on. Raises ConfigError."""
    if file is not None:
        _refuse_misspelt(document_of(file)[0].tree, str(file))
    return load_config(file, others=SGLANG_KEYS)


def wants_zero_copy(extra: Extra) -> bool:
    """Whether SGLang will hand host pages over by index, as its own code reads the key."""
    return bool(document_of(extra)[0].tree.get("interface_v1", 0))


def _refuse_misspelt(tree: Mapping[str, Any], where: str) -> None:
    """A key of SGLang's that it would overlook."""
    for name in tree.keys() - SGLANG_KEYS:
        if close := difflib.get_close_matches(name, SGLANG_KEYS, n=1, cutoff=0.85):
            raise ConfigError(f"unknown key {name!r} in {where}; did you mean {close[0]!r}?")
