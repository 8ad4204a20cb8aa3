"""The segment store on 3FS keeps every promise: by rings, with both clients, and by the mount."""

from __future__ import annotations

from pathlib import Path

from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.medium import Medium
from tests.backends.threefs.medium import ThreeFsMedium


class TestOwnRings(PageStorageConformance):
    machine_examples = 20

    def make_medium(self, directory: Path) -> Medium:
        return ThreeFsMedium(directory, io_engine="usrbio", ring_client="own")


class TestMount(PageStorageConformance):
    machine_examples = 20

    def make_medium(self, directory: Path) -> Medium:
        return ThreeFsMedium(directory, io_engine="fuse")
