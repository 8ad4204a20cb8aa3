"""Tests of the plugin with the real SGLang, by `make test-sglang`; without it none is collected."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.sglang.harness.zygote import Zygote

# A run that promises SGLang sets this; there its absence is an error.
PROMISED = "HICACHE_TEST_SGLANG"

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("sglang"):
    # not beside the page hashes that other releases compile, by the same name
    compiled = Path(__file__).parents[2] / "build" / "sglang" / "torch_extensions"
    os.environ.setdefault("TORCH_EXTENSIONS_DIR", str(compiled))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # on CPU SGLang's imports warn of what needs a GPU
        importlib.import_module("sglang.srt.mem_cache.unified_radix_cache")
        from sglang.srt.mem_cache.utils import get_hash_str
        from sglang_cpu.patches import apply

    apply()
    get_hash_str([0], None)  # compiles for six seconds at its first use ever: not in a test
elif os.environ.get(PROMISED):
    raise RuntimeError("SGLang is not installed: `make test-sglang` makes its environment")
else:
    collect_ignore_glob = ["*"]


@pytest.fixture(scope="session")
def zygote() -> Iterator[Zygote]:
    """What starts servers in 2 s, once it has taken 7 s."""
    from tests.sglang.harness.zygote import Zygote

    with Zygote() as process:
        yield process


@pytest.fixture(scope="session")
def qwen2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with grouped-query attention."""
    from tests.sglang.harness.model import make_qwen2

    return make_qwen2(tmp_path_factory.mktemp("qwen2"))


@pytest.fixture(scope="session")
def deepseek(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with multi-head latent attention."""
    from tests.sglang.harness.model import make_deepseek

    return make_deepseek(tmp_path_factory.mktemp("deepseek"))
