"""What the SGLang around us says about itself, whatever its release."""

from __future__ import annotations

import gc
import importlib
import logging
import re
import socket
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_log = logging.getLogger(__name__)
_ARGS_PLACES = (  # newest first: 0.5.15 on; 0.5.6 to 0.5.14
    ("sglang.srt.runtime_context", "get_server_args"),
    ("sglang.srt.server_args", "get_global_server_args"),
)
_RESOLVED = ("get_model", "get_spec", "get_lora")
"""Newer releases keep beside the arguments as given what they made of them."""
ZERO_COPY_SINCE = (0, 5, 6)
"""Earlier releases ignore `interface_v1`: pages come as flat tensors."""
SALTED_HASHES_SINCE = (0, 5, 20)
"""Earlier page hashes say nothing of LoRA adapter, extra_key and cache_salt."""


@dataclass(frozen=True)
class Engine:
    """A running SGLang.

    `args`: its launch arguments by name, None where it doesn't tell. `splits_requests`: attention
    is data parallel, over groups of tensor-parallel ranks. `hip`: on AMD, where 8-bit floats have
    other values by the same names.
    """

    version: str
    args: Mapping[str, Any] | None
    splits_requests: bool = False
    hip: bool = False

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
    args = _server_args()
    if args is None:
        _log.warning(
            "SGLang %s doesn't tell its launch arguments: LoRA adapters and changed weights "
            "(--quantization, --json-model-override-args) go unnoticed",
            version,
        )
    splits = bool(_called("sglang.srt.layers.dp_attention", "is_dp_attention_enabled"))
    engine = Engine(version, args, splits, _on_hip())
    if not engine.hashes_are_salted:
        _log.warning(
            "SGLang %s names the pages of requests with different cache_salt or extra_key alike: "
            "they are not kept apart in storage (0.5.20 and later do)",
            version,
        )
    return engine


def _on_hip() -> bool:
    version = getattr(sys.modules.get("torch"), "version", None)
    return bool(getattr(version, "hip", None))


def _server_args() -> dict[str, Any] | None:
    for module, name in _ARGS_PLACES:
        found = _called(module, name)
        if found is not None:
            said = _public(found)
            for getter in _RESOLVED:
                said |= _public(_called(module, getter))
            return said
    return _unreachable_args()


def _called(module: str, name: str) -> Any:
    """What this function of SGLang returns, None where it has none or isn't ready to tell."""
    try:
        return getattr(importlib.import_module(module), name)()
    except Exception as error:  # whatever a release of SGLang raises there
        _log.debug("%s.%s: %s", module, name, error)
        return None


def _public(holder: Any) -> dict[str, Any]:
    """The fields of an object; SGLang's arguments became a msgspec struct, which has no dict."""
    names = [*getattr(holder, "__struct_fields__", ()), *getattr(holder, "__dict__", ())]
    return {name: getattr(holder, name, None) for name in names if not name.startswith("_")}


def _unreachable_args() -> dict[str, Any] | None:
    """Before 0.5.6 a scheduler keeps its arguments where no function returns them."""
    kind = getattr(sys.modules.get("sglang.srt.server_args"), "ServerArgs", None)
    if kind is None:
        return None
    return next((_public(held) for held in gc.get_objects() if type(held) is kind), None)
