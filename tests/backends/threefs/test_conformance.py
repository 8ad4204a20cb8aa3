"""The segment store on 3FS keeps every promise: by rings, with both clients, and by the mount;
where pages share chunks, fill chunks, and are larger than what a ring moves at once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from hicache_backends.testing.concurrency import ConcurrencyTests
from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.damage import DamageTests
from hicache_backends.testing.eviction import EvictionTests
from hicache_backends.testing.lifecycle import LifecycleTests
from hicache_backends.testing.locations import LocationTests
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.state_machine import StateMachineTests
from hicache_backends.testing.suite import Suite
from tests.backends.threefs.medium import CHUNK, ThreeFsMedium
from tests.backends.usrbio.official_double import OfficialDouble
from tests.threefs.stand_in import ThreeFs


class OnOneDaemon(Suite):
    """Every medium of the class is a directory on one mount."""

    chunk_bytes = CHUNK
    options: ClassVar[dict[str, Any]] = {"io_engine": "usrbio", "ring_client": "own"}
    fs: ClassVar[ThreeFs]

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _mounted(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        directory = tmp_path_factory.mktemp("threefs")
        chunk = cls.chunk_bytes
        with ThreeFs(directory / "backing", directory / "mount", chunk_bytes=chunk) as cls.fs:
            yield

    def make_medium(self, directory: Path) -> Medium:
        return ThreeFsMedium(self.fs, self.chunk_bytes, **self.options)


class TestOwnRings(OnOneDaemon, PageStorageConformance):
    machine_examples = 6


class TestOfficialRings(OnOneDaemon, PageStorageConformance):
    machine_examples = 3
    hole_patterns = 60
    options: ClassVar = {"io_engine": "usrbio", "ring_client": "official"}

    @pytest.fixture(autouse=True)
    def _installed(self, double: OfficialDouble) -> None:
        """3FS's own module, as if it were there."""


class TestMount(OnOneDaemon, PageStorageConformance):
    machine_examples = 3
    hole_patterns = 60
    options: ClassVar = {"io_engine": "fuse"}


class TestPagesThatFillTheirChunk(OnOneDaemon, EvictionTests, LifecycleTests, DamageTests):
    chunk_bytes = 8 << 10


class TestPagesLargerThanABlock(OnOneDaemon, EvictionTests, DamageTests, LocationTests):
    chunk_bytes = 4 << 10
    options: ClassVar = {"io_engine": "usrbio", "ring_client": "own", "max_transfer_bytes": 4096}


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestLongRings(OnOneDaemon, ConcurrencyTests, StateMachineTests):
    churn_seconds = 60.0
    machine_examples = 200


@pytest.mark.slow
@pytest.mark.timeout(1200)
class TestLongMount(OnOneDaemon, ConcurrencyTests, StateMachineTests):
    churn_seconds = 60.0
    machine_examples = 200
    options: ClassVar = {"io_engine": "fuse"}
