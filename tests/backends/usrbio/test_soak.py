"""Many reads while the daemon reorders, fails, shortens, loses and delays."""

from __future__ import annotations

import errno
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.io.checksums import whole_records
from hicache_backends.segment.format import RECORD
from hicache_backends.usrbio.engine import UsrbioEngine
from hicache_backends.usrbio.ring import RingSettings
from tests.backends.io.batches import checksum, checksums, memory, read_batch, write_batch
from tests.threefs.stand_in import ThreeFs

SIZE = 4096
SLOTS = 512
SETTINGS = RingSettings(block_bytes=SIZE, rings=3, staging_bytes=1 << 20, entries=24, io_depth=4)
FAULTS = {
    "jitter_ms": 1,
    "reorder_ms": 2,
    "late_share": 0.02,
    "late_ms": 40,
    "fail_share": 0.02,
    "fail_errno": errno.EREMOTEIO,
    "short_share": 0.02,
    "hole_share": 0.02,
    "corrupt_share": 0.02,
}
EXPECTED_FAILURES = {-errno.EREMOTEIO, -errno.ETIMEDOUT}
Opener = Callable[..., UsrbioEngine]


class Reader:
    """Reads batches at random. Every page is named by its digest, so that a wrong one shows."""

    def __init__(self, engine: UsrbioEngine, fd: int, data: bytes, seed: int) -> None:
        self._engine, self._fd = engine, fd
        self._pages = [data[i * SIZE : (i + 1) * SIZE] for i in range(SLOTS)]
        self._chance = random.Random(seed)  # noqa: S311 - a choice of pages
        self._left: list[tuple[np.ndarray, np.ndarray]] = []
        self.counts = Counter[str]()

    def run(self, batches: int) -> None:
        for _ in range(batches):
            self._batch()
        for block, then in self._left:
            self.counts["written after the call"] += int((block != then).any())

    def _batch(self) -> None:
        count = self._chance.randint(1, 64)
        slots = [self._chance.randrange(SLOTS) for _ in range(count)]
        block, pages = memory(count, [1000, SIZE - 1000])
        batch = read_batch([self._fd] * count, [slot * SIZE for slot in slots], pages)
        timeout_ms = self._chance.choice([8, 30, 1000])
        result = self._engine.read(batch, Deadline.after_ms(timeout_ms))
        self._left.append((block, block.copy()))
        del self._left[:-64]
        expected = checksums([self._pages[slot] for slot in slots])
        base = int(block.__array_interface__["data"][0])
        for i, moved in enumerate(result.results.tolist()):
            parts = [
                block[int(a) - base : int(a) - base + int(s)].tobytes()
                for a, s in zip(pages.addresses[i], pages.sizes[i], strict=True)
            ]
            found = b"".join(parts)
            if moved != SIZE:
                self.counts["short" if moved >= 0 else errno.errorcode[-moved]] += 1
                rest = SIZE - max(0, moved)
                self.counts["touched"] += found[SIZE - rest :] != b"\xa5" * rest
                self.counts["unexplained"] += moved < 0 and moved not in EXPECTED_FAILURES
            elif result.checksums[i] == expected[i]:
                self.counts["served"] += 1
                self.counts["wrong"] += found != self._pages[slots[i]]
            else:
                self.counts["corrupt"] += 1
                self.counts["wrong"] += found == self._pages[slots[i]]
        self.counts["pages"] += count


def soak(engine: UsrbioEngine, fs: ThreeFs, batches: int) -> Counter[str]:
    """Four threads, so many batches each, and a daemon that hangs now and then."""
    data = np.random.default_rng(9).bytes(SLOTS * SIZE)
    (fs.backing / "pages").write_bytes(data)
    fd = os.open(fs.mount / "pages", os.O_RDONLY)
    readers = [Reader(engine, fd, data, seed) for seed in range(4)]
    threads = [threading.Thread(target=one.run, args=(batches,)) for one in readers]
    fs.set(**FAULTS)
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        fs.set(hang_share=0.05)
        threads[0].join(0.05)
        fs.set(hang_share=0)
        threads[0].join(0.05)
    fs.reset()
    while engine.stats()["quarantined"]:
        time.sleep(0.005)
    os.close(fd)
    return sum((one.counts for one in readers), Counter())


def test_no_record_names_bytes_that_are_not_there(open_engine: Opener, fs: ThreeFs) -> None:
    """Each slot is written once, while the daemon fails, shortens, hangs and reorders."""
    engine = open_engine(SETTINGS)
    rng = np.random.default_rng(2)
    for name, size in (("data", SIZE), ("index", 64)):
        (fs.backing / name).write_bytes(bytes(size * SLOTS))
    data, index = (os.open(fs.mount / name, os.O_RDWR) for name in ("data", "index"))
    fs.set(**{**FAULTS, "corrupt_share": 0, "hole_share": 0})
    stored: list[int] = []
    for turn, slots in enumerate(np.split(rng.permutation(SLOTS), 32)):
        fs.set(hang_share=0.2 if turn % 2 else 0)
        block, pages = memory(len(slots), [1000, SIZE - 1000])
        block[:] = rng.integers(0, 256, block.size, np.uint8)
        batch = write_batch(
            data,
            (slots * SIZE).tolist(),
            pages,
            index_fd=index,
            slots=slots.tolist(),
            was_used=[True] * len(slots),
        )
        result = engine.write(batch, Deadline.after_ms(50))
        stored += slots[result.results == SIZE].tolist()
        block[:] = 0  # what is still on its way was copied
    fs.reset()
    while engine.writes_in_doubt() or engine.stats()["quarantined"]:
        time.sleep(0.005)
    written = (fs.backing / "data").read_bytes()
    packed = (fs.backing / "index").read_bytes()
    records, valid = np.frombuffer(packed, RECORD), whole_records(packed)
    assert 100 < len(stored) < SLOTS
    assert valid[stored].all()
    for slot in np.flatnonzero(valid).tolist():
        page = written[slot * SIZE : (slot + 1) * SIZE]
        assert checksum(records["digest"][slot].tobytes(), page) == records["checksum"][slot]
    os.close(data)
    os.close(index)


@pytest.mark.parametrize(
    "batches", [120, pytest.param(8000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_no_page_is_wrong_and_no_buffer_is_written_after_its_call(
    open_engine: Opener, fs: ThreeFs, batches: int
) -> None:
    engine = open_engine(SETTINGS)
    counts = soak(engine, fs, batches)
    for fault in ("wrong", "written after the call", "touched", "unexplained"):
        assert counts[fault] == 0, counts
    for kind in ("served", "corrupt", "short", "EREMOTEIO", "ETIMEDOUT"):
        assert counts[kind], counts
    stats = engine.stats()
    assert stats["impossible"] == 0
    assert stats["late"] == stats["timed_out"]
    assert stats["quarantined"] == 0
