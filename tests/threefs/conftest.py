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
def client(fs: ThreeFs) -> Iterator[Client]:
    with Client(fs.mount) as one:
        yield one
