"""Tests of the plugin with the real SGLang, by `make test-sglang`; without it none is collected."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings

# A run that promises SGLang sets this; there its absence is an error.
PROMISED = "HICACHE_TEST_SGLANG"

collect_ignore_glob: list[str] = []
if importlib.util.find_spec("sglang"):
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
