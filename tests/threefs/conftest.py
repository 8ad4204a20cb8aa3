from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.threefs.client import Client
from tests.threefs.stand_in import ThreeFs


@pytest.fixture
def fs(tmp_path: Path) -> Iterator[ThreeFs]:
    with ThreeFs(tmp_path / "backing", tmp_path / "mount") as daemon:
        yield daemon


@pytest.fixture
def other(tmp_path: Path, fs: ThreeFs) -> Iterator[ThreeFs]:
    """A second host of the same file system."""
    with ThreeFs(fs.backing, tmp_path / "other") as daemon:
        yield daemon


@pytest.fixture
def client(fs: ThreeFs) -> Iterator[Client]:
    with Client(fs.mount) as one:
        yield one


@pytest.fixture
def still(tmp_path: Path) -> Iterator[ThreeFs]:
    """The kernel asks for no attributes again: a fstat answers when the daemon is dead."""
    with ThreeFs(tmp_path / "backing", tmp_path / "still", attr_ms=3_600_000) as daemon:
        yield daemon
