"""SGLang's `--hicache-storage-backend-extra-config`: its own keys, and a configuration of ours."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_storage.config import Config, load_config
from hicache_storage.config.document import parse

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


def plugin_config(extra: Mapping[str, Any] | str | bytes | None) -> Config:
    """The configuration in an extra config: the file that its `config` names, or its sections.

    Raises ConfigError for an unknown key, and where it has both.
    """
    if isinstance(extra, (str, bytes)):
        extra = parse(extra, "extra config").tree if extra else {}
    own = {key: value for key, value in (extra or {}).items() if key not in SGLANG_KEYS}
    file = own.pop(FILE_KEY, None)
    if file is None:
        return load_config(own or None)
    if own:
        raise ConfigError(
            f"the extra config names the file {file} and has {', '.join(sorted(own))} itself: "
            "say it all in one place"
        )
    if not isinstance(file, str):
        raise ConfigError(f"config in the extra config is the path of a file, not {file!r}")
    return load_config(Path(file))


def wants_zero_copy(extra: Mapping[str, Any] | str | bytes | None) -> bool:
    """Whether SGLang will hand host pages over by index, as its own code reads the key."""
    if isinstance(extra, (str, bytes)):
        extra = parse(extra, "extra config").tree if extra else {}
    return bool((extra or {}).get("interface_v1", 0))
