"""Pages as objects keep every promise, on file systems of each kind."""

from __future__ import annotations

import uuid
from pathlib import Path

from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.medium import Medium
from tests.backends.objects.media import FsspecMedium


class TestMemory(PageStorageConformance):
    machine_examples = 20

    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(f"memory://{uuid.uuid4().hex}/kv")


class TestMemoryBounded(PageStorageConformance):
    machine_examples = 20
    hole_patterns = 60

    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(f"memory://{uuid.uuid4().hex}", bound=True)


class TestMemoryBesideARegistry(PageStorageConformance):
    machine_examples = 10
    hole_patterns = 60

    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(f"memory://{uuid.uuid4().hex}", bound=True, shared=True)


class TestFile(PageStorageConformance):
    machine_examples = 10
    hole_patterns = 60

    def make_medium(self, directory: Path) -> Medium:
        return FsspecMedium(f"file://{directory}/kv")
