"""What the SGLang around us says about itself, whatever its release."""

from __future__ import annotations

import importlib
import logging
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger(__name__)
_ARGS_PLACES = (  # newest first: 0.5.16 on; 0.5.6 to 0.5.15
    ("sglang.srt.runtime_context", "get_server_args"),
    ("sglang.srt.server_args", "get_global_server_args"),
)
ZERO_COPY_SINCE = (0, 5, 6)
"""Earlier releases ignore `interface_v1`: pages come as flat tensors."""
SALTED_HASHES_SINCE = (0, 5, 20)
"""Earlier page hashes say nothing of LoRA adapter, extra_key and cache_salt."""


@dataclass(frozen=True)
class Engine:
    """A running SGLang. `args`: its launch arguments by name, None where it doesn't tell."""

    version: str
    args: Mapping[str, Any] | None

    @property
    def release(self) -> tuple[int, ...]:
        """The version's leading numbers; a version without any counts as the newest."""
        found = re.match(r"\d+(?:\.\d+)*", self.version)
        return tuple(map(int, found.group().split("."))) if found else (1 << 30,)

    @property
    def zero_copy(self) -> bool:
        """Whether it can hand host pages over by index."""
        return self.release >= ZERO_COPY_SINCE

    @property
    def hashes_are_salted(self) -> bool:
        """Whether a page hash tells LoRA adapters and salts apart."""
        return self.release >= SALTED_HASHES_SINCE

    @property
    def serves_lora(self) -> bool:
        """Whether it was started with LoRA adapters, or to take them later."""
        return bool(self.arg("enable_lora") or self.arg("lora_paths"))

    @property
    def server_name(self) -> str:
        """Equal on all ranks of one server, on one host or several; "" if that isn't known."""
        meeting = self.arg("dist_init_addr")
        if meeting:
            return f"sglang-{meeting}"
        port = self.arg("port")
        return f"sglang-{socket.gethostname()}-{port}" if port else ""

    def arg(self, name: str) -> Any:
        """A launch argument, None where it isn't set or isn't told."""
        return None if self.args is None else self.args.get(name)


def running_engine() -> Engine:
    """The SGLang that this process runs."""
    try:
        version = str(importlib.import_module("sglang").__version__)
    except (ImportError, AttributeError):
        version = ""
    return Engine(version, _server_args())


def _server_args() -> dict[str, Any] | None:
    for module, name in _ARGS_PLACES:
        try:
            args = getattr(importlib.import_module(module), name)()
        except Exception as error:
            _log.debug("%s.%s: %s", module, name, error)
            continue
        if args is not None:
            return {key: value for key, value in vars(args).items() if not key.startswith("_")}
    return None
