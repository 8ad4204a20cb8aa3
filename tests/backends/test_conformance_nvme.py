"""The segment store on a local file system keeps every promise, in each of its modes."""

from __future__ import annotations

from pathlib import Path

import pytest

from hicache_backends.testing.concurrency import ConcurrencyTests
from hicache_backends.testing.conformance import PageStorageConformance
from hicache_backends.testing.medium import Medium
from hicache_backends.testing.state_machine import StateMachineTests
from tests.backends.nvme_medium import NvmeMedium


class TestNvme(PageStorageConformance):
    def make_medium(self, directory: Path) -> Medium:
        return NvmeMedium(directory)


class TestNvmePosixBuffered(PageStorageConformance):
    machine_examples = 20
    hole_patterns = 60

    def make_medium(self, directory: Path) -> Medium:
        return NvmeMedium(directory, io_engine="posix", io_mode="buffered")


class TestNvmeStaged(PageStorageConformance):
    machine_examples = 20
    hole_patterns = 60

    def make_medium(self, directory: Path) -> Medium:
        return NvmeMedium(directory, zero_copy="never")


class TestNvmeTwoPaths(PageStorageConformance):
    machine_examples = 20
    hole_patterns = 60

    def make_medium(self, directory: Path) -> Medium:
        return NvmeMedium(directory, roots=2)


@pytest.mark.slow
class TestNvmeSoak(ConcurrencyTests, StateMachineTests):
    churn_seconds = 60.0
    machine_examples = 1000

    def make_medium(self, directory: Path) -> Medium:
        return NvmeMedium(directory)
