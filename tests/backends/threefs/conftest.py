"""Daemons to test on, and 3FS's own module as if it were installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.backends.usrbio.conftest import double
from tests.threefs.stand_in import ThreeFs

__all__ = ["double"]


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[ThreeFs]:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as fs:
        yield fs


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[ThreeFs, ThreeFs]]:
    """Two hosts of one cluster, which believe for as long as those of 3FS what they saw."""
    backing = tmp_path / "backing"
    caches: dict[str, Any] = {"entry_ms": 30_000, "attr_ms": 30_000, "absent_ms": 5000}
    with (
        ThreeFs(backing, tmp_path / "a", **caches) as a,
        ThreeFs(backing, tmp_path / "b", **caches) as b,
    ):
        yield a, b
