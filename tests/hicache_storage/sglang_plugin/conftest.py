from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from tests.hicache_storage.sglang_plugin.stand_ins import stand_in_torch


@pytest.fixture(autouse=True, scope="module")
def torch() -> Iterator[None]:
    """These tests do without torch, which SGLang brings along."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "torch", stand_in_torch())
        yield
