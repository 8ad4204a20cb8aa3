from __future__ import annotations

from pathlib import Path

from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.medium import Medium
from tests.backends.segment.raw import SegmentMedium


class TestNvmeConformance(PageStorageConformance):
    def make_medium(self, directory: Path) -> Medium:
        return SegmentMedium(directory / "root")
