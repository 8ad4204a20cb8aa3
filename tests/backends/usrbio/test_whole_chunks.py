"""What spares 3FS copies of chunks: index files written in whole ranges, pages padded to slots."""

from __future__ import annotations

import dataclasses
import errno
import os
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import IoResult, WriteBatch
from hicache_backends.native_calls import valid_records
from hicache_backends.usrbio.engine import UsrbioEngine
from hicache_backends.usrbio.ring import RingSettings
from tests.backends.io.batches import (
    checksums,
    contents,
    memory,
    old_index,
    soon,
    with_runs,
    write_batch,
)
from tests.backends.usrbio.official_double import OfficialDouble
from tests.backends.usrbio.plain_ring import Job, PlainRing, Serving
from tests.threefs.stand_in import ThreeFs

PAGE = 4096
SLOTS = 64
FIRST = 1 << 20
"""Where pages begin in their file, so that offsets tell pages from records."""

Verdict = Callable[[int, int], int | None]
Opener = Callable[..., UsrbioEngine]


class OwnRig:
    """Our ring client, answered as `verdict` says by offset and size. `ios`: what it asked for."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.verdict: Verdict = lambda offset, size: size
        self.ios: list[tuple[int, int]] = []
        self._ring = PlainRing(directory.stat().st_dev)

    def write(self, batch: WriteBatch, deadline: Deadline | None = None) -> IoResult:
        fds = {*batch.fds.tolist(), *batch.record_fds.tolist()} - {-1}
        with Serving(self._ring, list(fds), self._answer) as serving:
            serving.for_read = False
            result = self._ring.write(batch, deadline or soon())
        self.ios = [(job.offset, job.size) for job in serving.served]
        return result

    def _answer(self, jobs: list[Job]) -> list[tuple[Job, int | None]]:
        return [(job, self.verdict(job.offset, job.size)) for job in jobs]


class OfficialRig:
    """The same over the double of the official module."""

    def __init__(self, directory: Path, engine: UsrbioEngine, double: OfficialDouble) -> None:
        self.directory = directory
        self.verdict: Verdict = lambda offset, size: size
        self._engine, self._double = engine, double

    @property
    def ios(self) -> list[tuple[int, int]]:
        return self._double.ios

    def write(self, batch: WriteBatch, deadline: Deadline | None = None) -> IoResult:
        self._double.ios.clear()
        self._double.verdict = self._answer
        return self._engine.write(batch, deadline or soon())

    def _answer(self, offset: int, size: int) -> int:
        answer = self.verdict(offset, size)
        if answer is None:
            self._double.go.clear()
            self._double.go.wait()
            return -errno.EIO  # its file is closed by now
        return answer


Rig = OwnRig | OfficialRig


@pytest.fixture(params=["own", "official"])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "own":
        yield OwnRig(tmp_path)
        return
    fs: ThreeFs = request.getfixturevalue("fs")
    double: OfficialDouble = request.getfixturevalue("double")
    open_engine: Opener = request.getfixturevalue("open_engine")
    small = RingSettings(block_bytes=PAGE, rings=1, staging_bytes=16 * PAGE)
    yield OfficialRig(fs.mount, open_engine(small, client="official"), double)
    double.go.set()


@dataclasses.dataclass
class Written:
    """What a batch left behind. `held`, `stored`: slots with a record in the image, in the file."""

    results: list[int]
    sums: list[int]
    held: list[int]
    stored: list[int]
    data: bytes
    index: bytes


def write(
    rig: Rig,
    slots: list[int],
    used: list[int],
    *,
    records_a_run: int | None = 16,
    timeout_ms: float = 20_000,
) -> Written:
    image = old_index(SLOTS, used)
    (rig.directory / "index").write_bytes(image.tobytes())
    data = os.open(rig.directory / "data", os.O_RDWR | os.O_CREAT)
    index = os.open(rig.directory / "index", os.O_RDWR)
    _, pages = memory(len(slots), [1000, PAGE - 1000])
    batch = write_batch(
        data,
        [FIRST + slot * PAGE for slot in slots],
        pages,
        index_fd=index,
        slots=slots,
        was_used=[slot in used for slot in slots],
    )
    if records_a_run:
        batch = with_runs(batch, image, 64 * records_a_run)
    got = rig.write(batch, Deadline.after_ms(timeout_ms))
    os.close(data)
    os.close(index)
    stored = (rig.directory / "index").read_bytes()
    return Written(
        got.results.tolist(),
        got.checksums.tolist(),
        np.flatnonzero(valid_records(image.tobytes())).tolist(),
        np.flatnonzero(valid_records(stored)).tolist(),
        (rig.directory / "data").read_bytes(),
        stored,
    )


def nth(which: int, result: int | None, size: int) -> Verdict:
    """The write of this many bytes that comes as this one, from 1, gets this result."""
    seen = [0]

    def verdict(offset: int, asked: int) -> int | None:
        if offset >= FIRST or asked != size:
            return asked
        seen[0] += 1
        return result if seen[0] == which else asked

    return verdict


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    slots=st.lists(st.integers(0, SLOTS - 1), max_size=20, unique=True),
    used=st.sets(st.integers(0, SLOTS - 1)),
    failing=st.sets(st.integers(0, SLOTS - 1)),
    records_a_run=st.sampled_from([1, 5, 16, SLOTS]),
)
def test_the_file_is_the_image_and_what_records_alone_would_leave(
    rig: Rig, slots: list[int], used: set[int], failing: set[int], records_a_run: int
) -> None:
    bad = [-errno.EREMOTEIO, 100]

    def verdict(offset: int, size: int) -> int:
        slot = (offset - FIRST) // PAGE
        return bad[slot % 2] if offset >= FIRST and slot in failing else size

    rig.verdict = verdict
    alone = write(rig, slots, sorted(used), records_a_run=None)
    runs = write(rig, slots, sorted(used), records_a_run=records_a_run)
    assert (runs.results, runs.sums, runs.index) == (alone.results, alone.sums, alone.index)
    assert runs.held == runs.stored
    expected = {slot: -errno.EIO if bad[slot % 2] > 0 else bad[0] for slot in failing}
    assert runs.results == [expected.get(slot, PAGE) for slot in slots]
    assert set(runs.stored) == (used - set(slots)) | (set(slots) - failing)


def test_a_run_is_written_whole_once_a_phase(rig: Rig) -> None:
    slots = [40, 1, 3, 0, 5, 63, 20]
    written = write(rig, slots, [1, 2, 20, 40])
    assert written.results == [PAGE] * 7
    assert written.held == written.stored == sorted({2, *slots})
    pages = sorted((FIRST + slot * PAGE, PAGE) for slot in slots)
    assert sorted(rig.ios[:3]) == [(at, 1024) for at in (0, 1024, 2048)]
    assert sorted(rig.ios[3:-4]) == pages
    assert sorted(rig.ios[-4:]) == [(at, 1024) for at in (0, 1024, 2048, 3072)]


@pytest.mark.parametrize("answer", [-errno.ENOSPC, 100])
def test_pages_whose_old_records_cannot_be_voided_fail(rig: Rig, answer: int) -> None:
    rig.verdict = nth(1, answer, 1024)
    written = write(rig, [3, 1, 2], [1, 2])
    # of 100 bytes none reaches as far as the end of the record of slot 1
    assert written.results == [PAGE, *[min(answer, 0) or -errno.EIO] * 2]
    assert written.held == [3]
    assert (FIRST + PAGE, PAGE) not in rig.ios
    assert (FIRST + 3 * PAGE, PAGE) in rig.ios


@pytest.mark.parametrize("answer", [-errno.ENOSPC, 200])
def test_pages_whose_new_records_are_not_written_fail(rig: Rig, answer: int) -> None:
    """Of 200 bytes the record of slot 2 is whole, that of slot 3 is not."""
    rig.verdict = nth(2, answer, 1024)
    written = write(rig, [2, 3], [1, 2, 9])
    whole = answer == 200
    assert written.results == [
        PAGE if whole else answer,
        -errno.EIO if whole else answer,
    ]
    assert written.held == ([1, 2, 9] if whole else [1, 9])


def test_a_run_larger_than_a_block_fails_block_by_block(rig: Rig) -> None:
    image = old_index(3 * SLOTS, [])
    (rig.directory / "index").write_bytes(image.tobytes())
    data = os.open(rig.directory / "data", os.O_RDWR | os.O_CREAT)
    index = os.open(rig.directory / "index", os.O_RDWR)
    _, pages = memory(3, [PAGE])
    slots = [0, 70, 150]
    offsets = [FIRST + slot * PAGE for slot in slots]
    batch = with_runs(
        write_batch(data, offsets, pages, index_fd=index, slots=slots), image, image.size
    )
    rig.verdict = lambda offset, size: -errno.EIO if offset == PAGE else size
    assert rig.write(batch).results.tolist() == [PAGE, -errno.EIO, PAGE]
    assert sorted(rig.ios)[:3] == [(at, PAGE) for at in (0, PAGE, 2 * PAGE)]
    assert np.flatnonzero(valid_records(image.tobytes())).tolist() == [0, 150]
    os.close(data)
    os.close(index)


@pytest.mark.parametrize(("phase", "slots"), [(1, [1]), (2, [1, 5])])
def test_a_run_that_is_late_fails_its_pages(rig: Rig, phase: int, slots: list[int]) -> None:
    rig.verdict = nth(phase, None, 1024)
    written = write(rig, slots, [1, 2], timeout_ms=100)
    assert written.results == [-errno.ETIMEDOUT] * len(slots)
    assert written.held == [2]


@pytest.mark.parametrize("page_bytes", [1000, PAGE, PAGE + 1, 2 * PAGE + 5])
@pytest.mark.parametrize("padded_bytes", [0, 3 * PAGE, 4 * PAGE - 8])
def test_pages_are_padded_with_zeros(rig: Rig, page_bytes: int, padded_bytes: int) -> None:
    """Also over several blocks, and over what an earlier page left in them."""
    slot_bytes = 4 * PAGE
    data = os.open(rig.directory / "data", os.O_RDWR | os.O_CREAT)
    os.pwrite(data, b"\x11" * 10 * slot_bytes, 0)
    block, pages = memory(9, [page_bytes - 7, 7])
    block[:] = np.random.default_rng(2).integers(1, 256, block.size, np.uint8)
    slots = random.Random(3).sample(range(10), 9)  # noqa: S311 - a choice of slots
    batch = write_batch(data, [slot * slot_bytes for slot in slots], pages)
    got = rig.write(dataclasses.replace(batch, padded_bytes=padded_bytes))
    os.close(data)
    assert got.results.tolist() == [page_bytes] * 9
    assert got.checksums.tolist() == checksums(contents(block, pages))
    written = (rig.directory / "data").read_bytes()
    for slot, page in zip(slots, contents(block, pages), strict=True):
        found = written[slot * slot_bytes : (slot + 1) * slot_bytes]
        assert found == page.ljust(padded_bytes, b"\0").ljust(slot_bytes, b"\x11")
    assert sum(size for _, size in rig.ios) == 9 * max(page_bytes, padded_bytes)


def test_a_page_whose_padding_is_cut_off_has_failed(rig: Rig) -> None:
    data = os.open(rig.directory / "data", os.O_RDWR | os.O_CREAT)
    rig.verdict = lambda offset, size: 1500 if offset == PAGE else size
    _, pages = memory(3, [1000])
    batch = write_batch(data, [0, PAGE, 2 * PAGE], pages)
    got = rig.write(dataclasses.replace(batch, padded_bytes=PAGE))
    assert got.results.tolist() == [1000, -errno.EIO, 1000]
    os.close(data)


def test_pages_in_registered_memory_are_not_padded(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(b"\x11" * 2 * PAGE)
    data = os.open(tmp_path / "data", os.O_RDWR)
    ring = PlainRing(os.fstat(data).st_dev)
    block, pages = memory(2, [1000])
    region = struct.pack("=QQ16s", block.__array_interface__["data"][0], block.size, b"r" * 16)
    batch = dataclasses.replace(write_batch(data, [0, PAGE], pages), padded_bytes=PAGE)
    with Serving(ring, [data], memory=block) as serving:
        serving.for_read = False
        assert ring.write(batch, soon(), region).results.tolist() == [1000, 1000]
    os.close(data)
    assert (tmp_path / "data").read_bytes() == 2 * (b"\xa5" * 1000 + b"\x11" * 3096)


@pytest.mark.parametrize("padded_bytes", [-1, 999, 1 << 41])
def test_padding_that_cannot_be_raises(rig: Rig, padded_bytes: int, open_engine: Opener) -> None:
    _, pages = memory(1, [1000])
    batch = dataclasses.replace(write_batch(-1, [0], pages), padded_bytes=padded_bytes)
    with pytest.raises(ValueError, match="padded_bytes"):
        open_engine().write(batch, soon())
    if isinstance(rig, OwnRig) and padded_bytes != 999:
        with pytest.raises(ValueError, match="padded_bytes"):
            rig.write(batch)


def test_the_daemon_sees_whole_chunks(fs: ThreeFs, open_engine: Opener, fd: int) -> None:
    chunk = 64 << 10
    engine = open_engine(RingSettings(block_bytes=chunk, rings=1, staging_bytes=4 << 20))
    index_bytes = 2 * chunk
    slots = [0, 7, 1500, 1024, 2047]
    used = [7, 1500]
    image = old_index(index_bytes // 64, used)
    index = os.open(fs.mount / "index", os.O_RDWR | os.O_CREAT)
    os.pwrite(index, image.tobytes(), 0)
    _, pages = memory(5, [chunk - 3000])
    batch = write_batch(
        fd,
        [i * chunk for i in range(5)],
        pages,
        index_fd=index,
        slots=slots,
        was_used=[slot in used for slot in slots],
    )
    batch = dataclasses.replace(with_runs(batch, image, chunk), padded_bytes=chunk)
    before = fs.counters()
    assert engine.write(batch, soon()).results.tolist() == [chunk - 3000] * 5
    after = fs.counters()
    assert after["writes"] - before["writes"] == 2 + 5 + 2
    assert after["written_bytes"] - before["written_bytes"] == (2 + 5 + 2) * chunk
    assert (fs.backing / "index").read_bytes() == image.tobytes()
    assert (fs.backing / "data").read_bytes()[: 5 * chunk] == 5 * (
        b"\xa5" * (chunk - 3000) + bytes(3000)
    )
    os.close(index)
