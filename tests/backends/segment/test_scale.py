"""What many stored pages cost: start-up, memory, and each call."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

import numpy as np
import pytest

from hicache_backends.io.checksums import seal_records
from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.segment.format import RECORD
from hicache_backends.segment.segment import data_path, index_path, slot_bytes, stored_bytes
from hicache_backends.storage import ROOT
from hicache_backends.testing.canaries import NAMESPACE, PAGE_BYTES, Target, chain_parents, soon
from tests.backends.segment.worker import ENVIRONMENT

CHAIN = 32
SEGMENTS = 16


def forge(root: Path, pages: int) -> list[bytes]:
    """A closed store of so many pages whose data is nothing but holes; their digests."""
    capacity = stored_bytes(pages + 4096, PAGE_BYTES)
    options = NvmeOptions((str(root),), capacity_bytes=capacity, free_floor_bytes=0)
    open_nvme(NAMESPACE, options).close()
    (store,) = (root / NAMESPACE.fingerprint.hex()).glob("?" * 32)
    records = np.zeros(pages, RECORD)
    digests = np.random.default_rng(7).bytes(16 * pages)
    records["digest"] = np.frombuffer(digests, "V16")
    records["parent"][1:] = records["digest"][:-1]
    records["parent"][::CHAIN] = np.void(ROOT)
    records["generation"] = np.arange(pages) + (1 << 40)
    records["bytes"] = PAGE_BYTES
    each = pages // SEGMENTS
    for number in range(SEGMENTS):
        packed = bytearray(records[number * each : (number + 1) * each].tobytes())
        seal_records(packed, np.arange(each), np.zeros(each, np.uint64))
        Path(index_path(str(store), number)).write_bytes(packed)
        with Path(data_path(str(store), number)).open("wb") as file:
            file.truncate(each * slot_bytes(PAGE_BYTES))
    return [digests[i : i + 16] for i in range(0, 16 * each * SEGMENTS, 16)]


def opened(root: Path) -> dict[str, float]:
    """Seconds of processor time and bytes of memory that another process takes to open it."""
    command = [sys.executable, "-m", __name__, str(root)]
    run = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT, check=True)
    answer: dict[str, float] = json.loads(run.stdout)
    return answer


def check_start(root: Path, pages: int) -> None:
    forge(root, pages)
    runs = [opened(root) for _ in range(3)]
    assert {run["pages"] for run in runs} == {pages}
    assert min(run["bytes"] for run in runs) / pages <= 250
    assert min(run["seconds"] for run in runs) <= 0.2 + 1.3e-6 * pages


def test_start_up_is_fast_and_small(tmp_path: Path) -> None:
    check_start(tmp_path, 160_000)


@pytest.mark.slow
def test_start_up_with_a_million_pages(tmp_path: Path) -> None:
    check_start(tmp_path, 1_000_000)


class Side:
    """A store of so many pages, with room for 32 batches more."""

    def __init__(self, root: Path, pages: int) -> None:
        root.mkdir()
        forge(root, pages)
        self.storage = open_nvme(NAMESPACE, NvmeOptions((str(root),), io_mode="buffered"))
        self._next = 1 << 64
        self._memory = Target(128).pages

    def put(self) -> float:
        """Store 128 new pages; seconds of processor time."""
        batch = [(self._next + n).to_bytes(16, "big") for n in range(128)]
        self._next += 128
        parents = chain_parents(batch)
        began = time.process_time()
        outcomes = self.storage.put(batch, self._memory, parents, soon())
        seconds = time.process_time() - began
        assert all(outcomes)
        return seconds


@pytest.mark.slow
def test_a_put_that_evicts_costs_the_same_however_many_pages_are_stored(tmp_path: Path) -> None:
    sides = [Side(tmp_path / "many", 1_000_000), Side(tmp_path / "few", 10_000)]
    for _ in range(40):
        for side in sides:
            side.put()
    assert all(side.storage.stats()["evicted"] for side in sides)
    taken: list[list[float]] = [[], []]
    for turn in range(80):
        for n in (0, 1) if turn % 2 else (1, 0):
            taken[n].append(sides[n].put())
    assert median(taken[0]) / median(taken[1]) <= 1.3
    for side in sides:
        side.storage.close()


def _report(root: str) -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    before, began = resident(), time.process_time()
    storage = open_nvme(NAMESPACE, NvmeOptions((root,)))
    seconds, used = time.process_time() - began, resident() - before
    pages = storage.stats()["pages"]
    storage.close()
    sys.stdout.write(json.dumps({"seconds": seconds, "bytes": used, "pages": pages}))


if __name__ == "__main__":
    _report(sys.argv[1])
