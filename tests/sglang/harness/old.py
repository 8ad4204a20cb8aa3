"""The cache controllers of older releases of SGLang, each in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]
RELEASES = ROOT / "build" / "sglang"  # as `make test-sglang` unpacks them
OLD = ("0.5.3", "0.5.6", "0.5.10", "0.5.15", "0.5.20")


@dataclass(frozen=True)
class Report:
    """What an old controller made of a prompt: pages stored, and fetched to other host memory."""

    version: str
    stored_pages: int
    fetched_pages: int
    equal: bool
    calls: dict[str, int]
    # names of storage threads that an exception of the backend has ended
    dead_threads: list[str]


def run_old(
    version: str,
    extra_config: Mapping[str, Any],
    *,
    pages: int = 150,
    model_name: str = "org/model",
    layout: str = "page_first",
    timeout_s: float = 60.0,
) -> Report:
    """Store and fetch a prompt with a release's controller over a backend named by extra config.

    Raises subprocess.CalledProcessError where that process fails; its messages are on stderr.
    """
    order = {
        "extra_config": dict(extra_config),
        "pages": pages,
        "model_name": model_name,
        "layout": layout,
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", "tests.sglang.harness.old_controller"],
        input=json.dumps(order),
        env={
            **os.environ,
            "PYTHONPATH": f"{RELEASES / version}:{ROOT}:{ROOT / 'backends'}",
            "SGLANG_USE_CPU_ENGINE": "1",
            # each release compiles a page hash of its own, all by one name
            "TORCH_EXTENSIONS_DIR": str(RELEASES / version / "torch_extensions"),
        },
        cwd=ROOT,
        text=True,
        stdout=subprocess.PIPE,
        timeout=timeout_s,
        check=True,
    )
    return Report(version=version, **json.loads(done.stdout.splitlines()[-1]))
