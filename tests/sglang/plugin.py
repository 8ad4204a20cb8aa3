"""The plugin as SGLang is told of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def extra_config(
    path: Path, *, zero_copy: bool = True, shared: bool = False, **sections: Any
) -> dict[str, Any]:
    """SGLang's extra config for pages in `path`; `shared`: through a registry beside them.

    `sections` of the configuration replace those that are written here.
    """
    config: dict[str, Any] = {
        "backend_name": "hicache",
        "module_path": "hicache_storage.sglang",
        "class_name": "HiCacheL3",
        "interface_v1": int(zero_copy),
        "hicache_storage_pass_prefix_keys": True,
        "storage_backend": "nvme",
        "nvme": {"path": str(path), "capacity": "1GiB", "free_floor": 0},
        "global_kvmanager": {"enabled": shared},
        "identity": {"model": "tiny", "revision": "1"},
    }
    for name, section in sections.items():
        config[name] = {**config.get(name, {}), **section} if isinstance(section, dict) else section
    return config
