from __future__ import annotations

import pytest

from hicache_backends.io.engine import Engine
from hicache_backends.io.native import NativeEngine
from hicache_backends.io.posix import PosixEngine


@pytest.fixture(params=["native", "native-releasing", "posix", "posix-numpy"])
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Engine:
    """Each engine, and each of its ways."""
    if request.param == "posix-numpy":
        monkeypatch.setattr("hicache_backends.io.checksums._fast", None)
    if request.param.startswith("posix"):
        return PosixEngine()
    return NativeEngine(keep_gil_bytes=0 if request.param == "native-releasing" else 1 << 20)
