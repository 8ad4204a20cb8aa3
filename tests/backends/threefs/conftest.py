"""Daemons to test on, and 3FS's own module as if it were installed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.usrbio.conftest import double
from tests.threefs.stand_in import ThreeFs

__all__ = ["double"]


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[ThreeFs]:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as fs:
        yield fs
