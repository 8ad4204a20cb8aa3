"""What every part of the suite starts from: a medium of the backend under test, and a store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_backends.storage import PageStorage
from hicache_backends.testing.canaries import NAMESPACE
from hicache_backends.testing.medium import Medium


class Suite:
    """Base of the suite's parts."""

    def make_medium(self, directory: Path) -> Medium:
        """A new, empty medium; `directory` is fresh, and may go unused."""
        raise NotImplementedError(f"{type(self).__name__} must define make_medium")

    @pytest.fixture
    def medium(self, tmp_path: Path) -> Iterator[Medium]:
        """A medium for one test."""
        medium = self.make_medium(tmp_path)
        yield medium
        medium.close()

    @pytest.fixture
    def storage(self, medium: Medium) -> Iterator[PageStorage]:
        """A store of `NAMESPACE` on the medium."""
        storage = medium.open(NAMESPACE)
        yield storage
        storage.close()
