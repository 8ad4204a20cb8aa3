"""Our side of a ring, against a daemon that answers late, out of order, short, or nonsense."""

from __future__ import annotations

import errno
import os
import random
import struct
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_backends import _native
from hicache_backends.deadline import Deadline
from hicache_backends.io.native import NativeEngine
from hicache_backends.segment.format import RECORD
from hicache_backends.usrbio import layout
from tests.backends.io.batches import checksums, contents, memory, read_batch, soon, write_batch
from tests.backends.usrbio.plain_ring import Job, PlainRing, Serving

PAGE = 4096
SLOTS = 64


@pytest.fixture(scope="module")
def fd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    path = tmp_path_factory.mktemp("file") / "data"
    path.write_bytes(np.random.default_rng(7).bytes(SLOTS * PAGE))
    fd = os.open(path, os.O_RDWR)
    yield fd
    os.close(fd)


def ring_for(fd: int, **options: int) -> PlainRing:
    return PlainRing(os.fstat(fd).st_dev, **options)


def slot(fd: int, number: int, size: int = PAGE) -> bytes:
    return os.pread(fd, size, number * PAGE)


def test_the_layout_is_the_daemons() -> None:
    assert [layout.ring_bytes(entries) for entries in (1, 8, 1024)] == [4336, 5008, 102_544]
    n = 9
    assert layout.HEADER_BYTES + layout.ARGUMENTS_BYTES * n == 16 + 56 * n
    assert layout.COMPLETION_BYTES + layout.SUBMISSION_BYTES == 80 + 16 - 56


def test_arguments_lie_where_the_daemon_looks(fd: int) -> None:
    ring = ring_for(fd)
    _, pages = memory(1, [PAGE])
    ring.read(read_batch([fd], [3 * PAGE], pages), Deadline.after_ms(1))
    assert struct.unpack("=4i", ring.shared[:16].tobytes()) == (1, 0, 0, 0)
    sqe = 16 + 80 * 9
    index, userdata = struct.unpack("=i4xQ", ring.shared[sqe : sqe + 16].tobytes())
    at = 16 + 56 * index
    assert struct.unpack("=16s5Q", ring.shared[at : at + 56].tobytes()) == (
        ring.uuid,
        4096 + index * PAGE,
        os.fstat(fd).st_ino,
        3 * PAGE,
        PAGE,
        userdata,
    )


@pytest.mark.parametrize("pieces", [[PAGE], [1000, 3096], [4095, 1]], ids=str)
@pytest.mark.parametrize("count", [1, 5, 40])
def test_pages_are_read_with_their_checksums(fd: int, pieces: list[int], count: int) -> None:
    ring = ring_for(fd)
    block, pages = memory(count, pieces)
    with Serving(ring, [fd]):
        result = ring.read(
            read_batch([fd] * count, [i * PAGE for i in range(count)], pages), soon()
        )
    expected = [slot(fd, i) for i in range(count)]
    assert result.results.tolist() == [PAGE] * count
    assert contents(block, pages) == expected
    assert result.checksums.tolist() == checksums(expected)


def test_a_page_larger_than_a_block_goes_in_parts(fd: int) -> None:
    ring = ring_for(fd)
    block, pages = memory(3, [5000, 5000])

    def backwards(jobs: list[Job]) -> list[tuple[Job, int | None]]:
        return [(job, job.size) for job in reversed(jobs)]

    with Serving(ring, [fd], backwards):
        result = ring.read(read_batch([fd] * 3, [0, 4 * PAGE, 8 * PAGE], pages), soon())
    expected = [slot(fd, i, 10_000) for i in (0, 4, 8)]
    assert result.results.tolist() == [10_000] * 3
    assert contents(block, pages) == expected
    assert result.checksums.tolist() == checksums(expected)


def test_pages_and_records_are_written_as_the_native_engine_writes_them(tmp_path: Path) -> None:
    files = {}
    for name in ("ring", "native"):
        (tmp_path / name).write_bytes(b"\xee" * 40 * PAGE)
        (tmp_path / f"{name}.index").write_bytes(b"\xee" * 40 * 64)
        files[name] = (
            os.open(tmp_path / name, os.O_RDWR),
            os.open(tmp_path / f"{name}.index", os.O_RDWR),
        )
    ring = ring_for(files["ring"][0])
    slots = [7, 3, 4, 5, 20, 6]
    block, pages = memory(6, [1000, 3096])
    block[:] = np.random.default_rng(1).integers(0, 256, block.size, np.uint8)
    batches = {
        name: write_batch(
            data,
            [s * PAGE for s in slots],
            pages,
            index_fd=index,
            slots=slots,
            was_used=[True, False] * 3,
        )
        for name, (data, index) in files.items()
    }
    with Serving(ring, files["ring"]) as serving:
        serving.for_read = False
        result = ring.write(batches["ring"], soon())
    same = NativeEngine().write(batches["native"], soon())
    assert result.results.tolist() == same.results.tolist() == [PAGE] * 6
    assert result.checksums.tolist() == same.checksums.tolist()
    assert batches["ring"].records == batches["native"].records
    for suffix in ("", ".index"):
        ours, theirs = (tmp_path / f"{name}{suffix}" for name in ("ring", "native"))
        assert ours.read_bytes() == theirs.read_bytes()
    index_inode = os.fstat(files["ring"][1]).st_ino
    writes = [
        (job.offset // 64, job.size // 64) for job in serving.served if job.inode == index_inode
    ]
    assert writes == [(4, 1), (7, 1), (20, 1), (3, 5), (20, 1)]  # zeros of the used, then all
    for pair in files.values():
        for one in pair:
            os.close(one)


def test_the_record_of_a_page_that_failed_is_not_written(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(8 * PAGE))
    (tmp_path / "index").write_bytes(b"\xee" * 8 * 64)
    data, index = (os.open(tmp_path / name, os.O_RDWR) for name in ("data", "index"))
    ring = ring_for(data)
    _, pages = memory(3, [PAGE], fill=1)
    inode = os.fstat(data).st_ino

    def fail(jobs: list[Job]) -> list[tuple[Job, int | None]]:
        verdict = {0: -errno.ENOSPC, PAGE: 100}
        return [(j, verdict.get(j.offset, j.size) if j.inode == inode else j.size) for j in jobs]

    with Serving(ring, [data, index], fail) as serving:
        serving.for_read = False
        batch = write_batch(data, [0, PAGE, 2 * PAGE], pages, index_fd=index, was_used=[True] * 3)
        result = ring.write(batch, soon())
    assert result.results.tolist() == [-errno.ENOSPC, -errno.EIO, PAGE]
    records = np.frombuffer((tmp_path / "index").read_bytes(), RECORD)
    assert records["generation"][:3].tolist() == [0, 0, 9]
    os.close(data)
    os.close(index)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 1 << 32),
    count=st.integers(1, 40),
    entries=st.integers(1, 16),
    burst=st.integers(1, 16),
)
def test_each_page_gets_its_own_result_whatever_the_order(
    fd: int, seed: int, count: int, entries: int, burst: int
) -> None:
    """Bytes around the pages, and those of pages that failed, stay as they were."""
    chance = random.Random(seed)  # noqa: S311 - a choice of faults
    verdicts: dict[int, int] = {}

    def shuffled(jobs: list[Job]) -> list[tuple[Job, int | None]]:
        chance.shuffle(jobs)
        for job in jobs:
            verdicts[job.offset // PAGE] = chance.choice(
                [job.size] * 4 + [-errno.EIO, -errno.EREMOTEIO, 0, 100, PAGE - 1]
            )
        return [(job, verdicts[job.offset // PAGE]) for job in jobs]

    ring = ring_for(fd, entries=entries, burst=burst)
    block, pages = memory(count, [1000, 3096])
    slots = chance.sample(range(SLOTS), count)
    with Serving(ring, [fd], shuffled):
        result = ring.read(read_batch([fd] * count, [s * PAGE for s in slots], pages), soon())
    assert result.results.tolist() == [verdicts[s] for s in slots]
    found = contents(block, pages)
    for i, s in enumerate(slots):
        moved = max(0, verdicts[s])
        assert found[i] == slot(fd, s)[:moved] + b"\xa5" * (PAGE - moved)
    outside = block.copy()
    base = int(block.__array_interface__["data"][0])
    for address, size in zip(pages.addresses.ravel(), pages.sizes.ravel(), strict=True):
        outside[int(address) - base : int(address) - base + int(size)] = 0xA5
    assert (outside == 0xA5).all()
    assert (ring.staging[:4096] == 0xC3).all()
    assert (ring.staging[-4096:] == 0xC3).all()
    assert ring.facts()["quarantined"] == 0


def test_a_hung_daemon_costs_the_deadline_and_its_late_answers_touch_no_page(fd: int) -> None:
    ring = ring_for(fd, entries=4)
    block, pages = memory(8, [PAGE])
    with Serving(ring, [fd], lambda jobs: [(job, None) for job in jobs]) as serving:
        begin = time.monotonic()
        result = ring.read(
            read_batch([fd] * 8, [i * PAGE for i in range(8)], pages), Deadline.after_ms(50)
        )
        assert 0.05 <= time.monotonic() - begin < 2
        assert result.results.tolist() == [-errno.ETIMEDOUT] * 8
        assert ring.facts()["quarantined"] == 4
        again = ring.read(read_batch([fd] * 8, [0] * 8, pages), Deadline.after_ms(20))
        assert again.results.tolist() == [-errno.ETIMEDOUT] * 8
        assert len(serving.served) == 4  # no slot was used twice
        for job in serving.unanswered[1:]:
            serving.move(job, job.size)
        assert (block == 0xA5).all()
        facts = ring.facts()
        assert (facts["quarantined"], facts["late"]) == (1, 3)
    with Serving(ring, [fd]):
        served = ring.read(read_batch([fd] * 8, [i * PAGE for i in range(8)], pages), soon())
    assert served.results.tolist() == [PAGE] * 8
    assert contents(block, pages) == [slot(fd, i) for i in range(8)]


@pytest.mark.parametrize("index", [-1, 8, 9, 1 << 30, -(1 << 31)])
def test_an_impossible_index_breaks_the_ring_and_nothing_else(fd: int, index: int) -> None:
    ring = ring_for(fd)
    block, pages = memory(2, [PAGE])

    def nonsense(jobs: list[Job]) -> list[tuple[Job, int | None]]:
        ring.complete(index, jobs[0].userdata, PAGE)
        return []

    with Serving(ring, [fd], nonsense):
        batch = read_batch([fd] * 2, [0, PAGE], pages)
        assert ring.read(batch, soon()).results.tolist() == [-errno.EPROTO] * 2
        assert ring.read(batch, soon()).results.tolist() == [-errno.EPROTO] * 2
    assert (block == 0xA5).all()


@pytest.mark.parametrize("head", [-1, 9, 1 << 30])
def test_an_impossible_head_breaks_the_ring_and_nothing_else(fd: int, head: int) -> None:
    ring = ring_for(fd)
    _, pages = memory(2, [PAGE])

    def nonsense(jobs: list[Job]) -> list[tuple[Job, int | None]]:
        ring.complete(jobs[0].index, jobs[0].userdata, PAGE, head=head)
        return []

    with Serving(ring, [fd], nonsense):
        result = ring.read(read_batch([fd] * 2, [0, PAGE], pages), soon())
    assert -errno.EPROTO in result.results.tolist()


@pytest.mark.parametrize("answer", [PAGE + 1, 1 << 62, -5000, -(1 << 63)])
def test_an_impossible_length_is_an_error_of_its_page(fd: int, answer: int) -> None:
    ring = ring_for(fd)
    block, pages = memory(2, [PAGE])

    def nonsense(jobs: list[Job]) -> list[tuple[Job, int | None]]:
        for job in jobs:
            ring.complete(job.index, job.userdata, answer)
        return []

    with Serving(ring, [fd], nonsense):
        result = ring.read(read_batch([fd] * 2, [0, PAGE], pages), soon())
    assert result.results.tolist() == [-errno.EIO] * 2
    assert (block == 0xA5).all()


def test_an_answer_given_twice_completes_nothing_twice(fd: int) -> None:
    ring = ring_for(fd)
    _, pages = memory(2, [PAGE])

    def twice(jobs: list[Job]) -> list[tuple[Job, int | None]]:
        for _ in range(2):
            ring.complete(jobs[0].index, jobs[0].userdata, PAGE)
        return []

    with Serving(ring, [fd], twice):
        result = ring.read(read_batch([fd] * 2, [0, PAGE], pages), soon())
    assert result.results.tolist() == [PAGE, -errno.EPROTO]


@settings(max_examples=150)
@given(seed=st.integers(0, 1 << 32))
def test_whatever_stands_in_the_shared_memory_no_other_memory_is_touched(
    fd: int, seed: int
) -> None:
    chance = random.Random(seed)  # noqa: S311 - a choice of nonsense
    ring = ring_for(fd, entries=6)
    numbers = [0, 1, 5, 6, 7, -1, PAGE, PAGE + 1, 1 << 31, (1 << 63) - 1, -(1 << 63)]

    def scribble(jobs: list[Job]) -> list[tuple[Job, int | None]]:
        for job in jobs:
            index = chance.choice([job.index] * 6 + [chance.choice(numbers[:8])])
            userdata = chance.choice([job.userdata] * 6 + [0, 1 << 60])
            ring.complete(
                index,
                userdata,
                chance.choice([PAGE] * 4 + numbers),
                head=chance.choice([None] * 9 + [chance.randrange(-1, 9)]),
            )
            if chance.random() < 0.1:
                ring.set_header(chance.choice([1, 3]), chance.choice(numbers[:8]))
        return []

    block, pages = memory(20, [PAGE])
    with Serving(ring, [fd], scribble):
        offsets = [i * PAGE for i in range(20)]
        result = ring.read(read_batch([fd] * 20, offsets, pages), Deadline.after_ms(30))
    assert set(result.results.tolist()) <= {*range(PAGE + 1), *range(-4095, 0)}
    base = int(block.__array_interface__["data"][0])
    gaps = np.ones(block.size, np.bool_)
    for address in pages.addresses.ravel().tolist():
        gaps[address - base : address - base + PAGE] = False
    assert (block[gaps] == 0xA5).all()
    assert (ring.staging == 0xC3).all()


def test_a_stop_ends_the_call_in_flight(fd: int) -> None:
    ring = ring_for(fd)
    _, pages = memory(2, [PAGE])

    def stop(_: list[Job]) -> list[tuple[Job, int | None]]:
        _native.ring_stop(ring.handle)
        return []

    with Serving(ring, [fd], stop):
        result = ring.read(read_batch([fd] * 2, [0, PAGE], pages), soon())
    assert result.results.tolist() == [-errno.ENOTCONN] * 2


def test_files_of_another_mount_and_closed_ones_fail_alone(fd: int) -> None:
    ring = ring_for(fd)
    _, pages = memory(3, [PAGE])
    with Path("/proc/self/stat").open() as other, Serving(ring, [fd]):
        result = ring.read(read_batch([fd, other.fileno(), 9999], [0, 0, 0], pages), soon())
    assert result.results.tolist() == [PAGE, -errno.ESTALE, -errno.EBADF]


def test_pages_in_registered_memory_are_not_copied(fd: int) -> None:
    ring = ring_for(fd)
    block, pages = memory(5, [PAGE])
    base = int(block.__array_interface__["data"][0])
    region = struct.pack("=QQ16s", base, block.size, b"r" * 16)
    with Serving(ring, [fd], memory=block):
        batch = read_batch([fd] * 5, [i * PAGE for i in range(5)], pages)
        result = ring.read(batch, soon(), region)
    expected = [slot(fd, i) for i in range(5)]
    assert contents(block, pages) == expected
    assert result.checksums.tolist() == checksums(expected)
    assert (ring.staging == 0xC3).all()
    assert not _native.ring_may_touch(ring.handle, base, block.size)


def test_registered_memory_is_in_doubt_until_the_late_answer(fd: int) -> None:
    ring = ring_for(fd)
    block, pages = memory(2, [PAGE])
    base = int(block.__array_interface__["data"][0])
    region = struct.pack("=QQ16s", base, block.size, b"r" * 16)
    with Serving(ring, [fd], lambda jobs: [(j, None) for j in jobs], memory=block) as serving:
        batch = read_batch([fd] * 2, [0, PAGE], pages)
        ring.read(batch, Deadline.after_ms(20), region)
        addresses = [int(a) for a in pages.addresses.ravel()]
        assert all(_native.ring_may_touch(ring.handle, a, PAGE) for a in addresses)
        serving.move(serving.unanswered[0], PAGE)
        doubts = [_native.ring_may_touch(ring.handle, a, PAGE) for a in addresses]
    assert doubts == [False, True]
