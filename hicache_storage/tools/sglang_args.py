"""The launch flags that make a configuration SGLang's L3."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_storage.config import Config
from hicache_storage.config.layers import suggestion
from hicache_storage.config.loading import document_of
from hicache_storage.sglang.settings import FILE_KEY, SGLANG_KEYS, plugin_config

Flags = dict[str, str | None]
"""Values by flag, None for a switch, in the order of the command line."""

LAYOUTS = ("layer_first", "page_first", "page_first_direct", "page_first_kv_split", "page_head")
IO_BACKENDS = ("kernel", "direct", "kernel_ascend")
WRITE_POLICIES = ("write_through", "write_through_selective", "write_back")
PREFETCH_POLICIES = ("timeout", "wait_complete", "best_effort")
_SWITCH = "--enable-hierarchical-cache"
_BACKEND, _EXTRA = "--hicache-storage-backend", "--hicache-storage-backend-extra-config"
_NEEDED = (_SWITCH, _BACKEND, _EXTRA)
_LAYOUT, _IO = "--hicache-mem-layout", "--hicache-io-backend"
_SECONDS = 120


@dataclass(frozen=True)
class Tuning:
    """What an operator chooses; None: what suits the configuration, or SGLang's own default."""

    layout: str | None = None
    io_backend: str | None = None
    write_policy: str = WRITE_POLICIES[0]
    prefetch_policy: str = PREFETCH_POLICIES[0]
    prefetch_threshold: int | None = None


@dataclass(frozen=True)
class Checked:
    """Flags that an SGLang takes, and what there is to say of them. `version`: "" if unchecked."""

    flags: Flags
    version: str
    notes: tuple[str, ...]


def launch_flags(file: Path, tuning: Tuning) -> Flags:
    """The flags for the configuration in `file`, which every host of the server has at this path.

    Raises ConfigError for what no SGLang could serve.
    """
    path = file.expanduser().absolute()
    extra: dict[str, object] = {
        "backend_name": "hicache-storage",
        "module_path": "hicache_storage.sglang",
        "class_name": "HiCacheL3",
        "interface_v1": 1,
        "hicache_storage_pass_prefix_keys": True,
    }
    # SGLang doesn't read the file: what is in it for SGLang goes along
    extra |= {k: v for k, v in document_of(path)[0].tree.items() if k in SGLANG_KEYS}
    extra[FILE_KEY] = str(path)
    if tuning.prefetch_threshold is not None:
        extra["prefetch_threshold"] = tuning.prefetch_threshold
    config = plugin_config(extra)  # as it will be read there
    config.storage_options()  # says what is missing
    _refuse_relative(config)
    layout, io_backend = _layout(config, tuning)
    flags: Flags = {_SWITCH: None}
    if config.section.page_size is not None:
        flags["--page-size"] = str(config.section.page_size)
    return flags | {
        _LAYOUT: layout,
        _IO: io_backend,
        "--hicache-write-policy": _one_of("--write-policy", tuning.write_policy, WRITE_POLICIES),
        "--hicache-storage-prefetch-policy": _one_of(
            "--prefetch-policy", tuning.prefetch_policy, PREFETCH_POLICIES
        ),
        _BACKEND: "dynamic",
        _EXTRA: json.dumps(extra, separators=(",", ":")),
    }


def checked(flags: Flags) -> Checked:
    """These flags as the installed SGLang takes them: what it does not know is left out.

    Raises ConfigError where it has no such storage backend, and for a value that it does not take.
    """
    if find_spec("sglang") is None:
        return Checked(flags, "", ("unchecked: SGLang is not installed here",))
    answer = _ask(flags)
    if isinstance(answer, str):
        return Checked(flags, "", (f"unchecked: SGLang cannot be imported here: {answer}",))
    version, unknown = answer["version"], answer["unknown"]
    if missing := [flag for flag in _NEEDED if flag in (*unknown, *answer["refused"])]:
        raise ConfigError(f"SGLang {version} does not take {missing[0]}: 0.5.3 or later is needed")
    for flag, choices in answer["refused"].items():
        raise ConfigError(
            f"SGLang {version} takes no {flag} {flags[flag]}: one of {', '.join(choices)}"
        )
    if answer["error"]:
        raise ConfigError(f"SGLang {version} refuses the flags: {answer['error']}")
    notes = [f"left out: SGLang {version} has no {flag}" for flag in unknown]
    notes.append(f"checked by the argument parser of SGLang {version}")
    return Checked({f: v for f, v in flags.items() if f not in unknown}, version, tuple(notes))


def words(flags: Flags) -> list[str]:
    """The arguments of the command line."""
    return [word for pair in flags.items() for word in pair if word is not None]


def _layout(config: Config, tuning: Tuning) -> tuple[str, str]:
    """Layout and I/O backend that go together: SGLang would change one of them by itself, and
    the pages would not be what `identity.layout` says."""
    stated = config.identity.layout
    layout, io_backend = tuning.layout or stated, tuning.io_backend
    if layout is None:
        layout = "page_first_direct" if io_backend == "direct" else "page_first"
    if io_backend is None:
        io_backend = "direct" if layout == "page_first_direct" else "kernel"
    _one_of("--layout" if tuning.layout else "identity.layout", layout, LAYOUTS)
    _one_of("--io-backend", io_backend, IO_BACKENDS)
    if stated not in (None, layout):
        raise ConfigError(f"--layout is {layout!r}, but identity.layout is {stated!r}")
    wrong = {"page_first": "direct", "page_first_direct": "kernel"}
    if wrong.get(layout) == io_backend:
        raise ConfigError(
            f"layout {layout!r} does not go with I/O backend {io_backend!r}: page_first goes with "
            "kernel, page_first_direct with direct"
        )
    return layout, io_backend


def _refuse_relative(config: Config) -> None:
    """Servers are started in all sorts of directories, and would not meet in one of these."""
    paths = config.nvme.paths or ((config.nvme.path,) if config.nvme.path else ())
    if relative := [path for path in paths if not Path(path).is_absolute()]:
        raise ConfigError(
            f"nvme: the path {relative[0]!r} would be another directory wherever a server is "
            "started; write it from / on"
        )


def _one_of(name: str, value: str, values: tuple[str, ...]) -> str:
    if value not in values:
        known = ", ".join(values)
        raise ConfigError(f"{name}: one of {known}, not {value!r}{suggestion(value, values)}")
    return value


def _ask(flags: Mapping[str, str | None]) -> dict[str, Any] | str:
    """What the parser of the SGLang installed here says; text where it could not be asked."""
    path = os.pathsep.join(filter(None, sys.path))
    try:
        child = subprocess.run(
            [sys.executable, "-m", "hicache_storage.tools.sglang_parser"],
            input=json.dumps(flags),
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            env={**os.environ, "PYTHONPATH": path},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {_SECONDS} s"
    if child.returncode:
        said = child.stderr.strip().splitlines()
        return said[-1] if said else f"exit code {child.returncode}"
    answer: dict[str, Any] = json.loads(child.stdout)
    return answer
