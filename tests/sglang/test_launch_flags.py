"""The flags that `sglang-args` prints are taken by the argument parser of each release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RELEASES = ROOT / "build" / "sglang"
CONFIG = """
[storage.nvme]
path = "/kv"
page_size = 64
"""


def sglang_args(
    path: Path, *arguments: str, release: str | None = None
) -> subprocess.CompletedProcess[str]:
    file = path / "l3.toml"
    file.write_text(CONFIG)
    older = [str(RELEASES / release)] if release else []
    command = [sys.executable, "-m", "hicache_storage", "sglang-args", "--config", str(file)]
    return subprocess.run(
        [*command, "--json", *arguments],
        env={**os.environ, "PYTHONPATH": ":".join([*older, str(ROOT), str(ROOT / "backends")])},
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize("release", [None, "0.5.3", "0.5.20"])
def test_the_flags_are_taken(tmp_path: Path, release: str | None) -> None:
    done = sglang_args(tmp_path, "--prefetch-threshold", "64", release=release)
    assert done.returncode == 0, done.stderr
    version = release or "0.5.23"
    assert done.stderr == f"checked by the argument parser of SGLang {version}\n"
    assert "--hicache-storage-backend-extra-config" in json.loads(done.stdout)


def test_a_layout_that_a_release_lacks_is_refused(tmp_path: Path) -> None:
    done = sglang_args(tmp_path, "--layout", "page_head", release="0.5.3")
    assert done.returncode == 2
    assert "SGLang 0.5.3 takes no --hicache-mem-layout page_head: one of" in done.stderr


def test_an_sglang_that_cannot_be_imported_leaves_the_flags_unchecked(tmp_path: Path) -> None:
    broken = tmp_path / "sglang"
    broken.mkdir()
    (broken / "__init__.py").write_text("raise ImportError('no kernels for this card')")
    done = sglang_args(tmp_path, release=str(tmp_path))
    assert done.returncode == 0
    assert "unchecked: SGLang cannot be imported here: ImportError: no kernels" in done.stderr
    assert "dynamic" in json.loads(done.stdout)
