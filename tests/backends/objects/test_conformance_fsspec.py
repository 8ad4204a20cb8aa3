"""Pages as objects keep every promise, on file systems of each kind."""

from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from hicache_backends.testing.batches import BatchTests
from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.state_machine import StateMachineTests
from tests.backends.objects.media import FsspecMedium


class ShortConformance(PageStorageConformance):
    """Enough for every change; the long forms are below."""

    machine_examples = 5
    hole_patterns = 16
    churn_seconds = 0.5


class InMemory:
    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(f"memory://{uuid.uuid4().hex}/kv")


class InMemoryBounded:
    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(f"memory://{uuid.uuid4().hex}", bound=True)


class TestMemory(InMemory, ShortConformance):
    pass


class TestMemoryBounded(InMemoryBounded, ShortConformance):
    pass


class TestMemoryBesideARegistry(ShortConformance):
    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(f"memory://{uuid.uuid4().hex}", bound=True, shared=True)


class TestFile(ShortConformance):
    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(f"file://{directory}/kv")


@pytest.mark.slow
class TestMemoryLong(InMemory, StateMachineTests, BatchTests):
    pass


@pytest.mark.slow
class TestMemoryBoundedLong(InMemoryBounded, StateMachineTests, BatchTests):
    pass
