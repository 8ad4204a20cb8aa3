"""The engine over a stand-in of 3FS's daemon, with our ring client and with the official one."""

from __future__ import annotations

import errno
import gc
import os
import random
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, StorageClosed, StorageUnavailable
from hicache_backends.io.native import NativeEngine
from hicache_backends.pages import Pages
from hicache_backends.usrbio import layout
from hicache_backends.usrbio.engine import UsrbioEngine
from hicache_backends.usrbio.ring import RingSettings
from tests.backends.io.batches import checksums, contents, memory, read_batch, soon, write_batch
from tests.backends.usrbio.conftest import PAGE, SMALL, leftovers
from tests.backends.usrbio.official_double import OfficialDouble
from tests.threefs.stand_in import ThreeFs

Opener = Callable[..., UsrbioEngine]


@pytest.fixture(params=["own", "official"])
def engine(request: pytest.FixtureRequest, open_engine: Opener) -> UsrbioEngine:
    if request.param == "official":
        request.getfixturevalue("double")
    return open_engine(client=request.param)


@pytest.fixture
def index(fs: ThreeFs) -> Iterator[int]:
    fd = os.open(fs.mount / "index", os.O_RDWR | os.O_CREAT)
    os.pwrite(fd, b"\xee" * 64 * 64, 0)
    yield fd
    os.close(fd)


def backing(fs: ThreeFs, name: str) -> bytes:
    return (fs.backing / name).read_bytes()


@pytest.mark.parametrize("pieces", [[PAGE], [1000, PAGE - 1000], [PAGE, PAGE, 777]], ids=str)
@pytest.mark.parametrize("count", [1, 21])
def test_pages_are_read_as_the_native_engine_reads_them(
    engine: UsrbioEngine, fs: ThreeFs, fd: int, pieces: list[int], count: int
) -> None:
    size = sum(pieces)
    block, pages = memory(count, pieces)
    offsets = random.Random(1).sample(range(0, 60 * PAGE, 4096), count)  # noqa: S311
    result = engine.read(read_batch([fd] * count, offsets, pages), soon())
    data = backing(fs, "data")
    expected = [data[offset : offset + size] for offset in offsets]
    assert result.results.tolist() == [size] * count
    assert contents(block, pages) == expected
    assert result.checksums.tolist() == checksums(expected)


def test_pages_and_records_are_written_as_the_native_engine_writes_them(
    engine: UsrbioEngine, fs: ThreeFs, fd: int, index: int, tmp_path: Path
) -> None:
    slots = [*range(20, 40), 3, 1, 2]
    count = len(slots)
    block, pages = memory(count, [1000, PAGE - 1000])
    block[:] = np.random.default_rng(4).integers(0, 256, block.size, np.uint8)
    for name in ("data", "index"):
        (tmp_path / name).write_bytes(backing(fs, name))
    plain = [os.open(tmp_path / name, os.O_RDWR) for name in ("data", "index")]
    batches = [
        write_batch(
            data,
            [slot * PAGE for slot in slots],
            pages,
            index_fd=records,
            slots=slots,
            was_used=[slot % 2 == 0 for slot in slots],
        )
        for data, records in ((fd, index), plain)
    ]
    result = engine.write(batches[0], soon())
    same = NativeEngine().write(batches[1], soon())
    assert result.results.tolist() == same.results.tolist() == [PAGE] * count
    assert result.checksums.tolist() == same.checksums.tolist()
    assert batches[0].records == batches[1].records
    for name in ("data", "index"):
        assert backing(fs, name) == (tmp_path / name).read_bytes()
    for one in plain:
        os.close(one)


def test_what_cannot_be_moved_fails_alone(engine: UsrbioEngine, fd: int, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_bytes(bytes(PAGE))
    _, pages = memory(4, [PAGE])
    with (tmp_path / "elsewhere").open("rb") as other:
        result = engine.read(
            read_batch([fd, other.fileno(), fd, 4000], [0, 0, 63 * PAGE + 4096, 0], pages), soon()
        )
    assert result.results.tolist() == [PAGE, -errno.ESTALE, PAGE - 4096, -errno.EBADF]


def test_the_end_of_a_file_gives_what_there_is(engine: UsrbioEngine, fs: ThreeFs, fd: int) -> None:
    size = 3 * PAGE
    block, pages = memory(1, [size - 1000, 1000])
    result = engine.read(read_batch([fd], [62 * PAGE + 4096], pages), soon())
    there = 2 * PAGE - 4096
    assert result.results.tolist() == [there]
    assert contents(block, pages)[0][:there] == backing(fs, "data")[-there:]


def test_the_official_client_matches_what_comes_out_of_order(
    double: OfficialDouble, open_engine: Opener, fd: int, fs: ThreeFs
) -> None:
    engine = open_engine(client="auto")
    assert engine.stats()["client"] == "official"
    answers = [PAGE, -errno.EREMOTEIO, 100, 0, PAGE + 1, -9999]
    double.verdict = lambda offset, size: answers[offset // PAGE % 6]
    block, pages = memory(30, [PAGE])
    result = engine.read(read_batch([fd] * 30, [i * PAGE for i in range(30)], pages), soon())
    bad = -errno.EIO
    assert result.results.tolist() == [PAGE, -errno.EREMOTEIO, 100, 0, bad, bad] * 5
    data = backing(fs, "data")
    for i, found in enumerate(contents(block, pages)):
        moved = {0: PAGE, 2: 100}.get(i % 6, 0)
        assert found == data[i * PAGE : i * PAGE + moved] + b"\xa5" * (PAGE - moved)


def test_the_official_client_quarantines_what_is_late(
    double: OfficialDouble, open_engine: Opener, fd: int
) -> None:
    engine = open_engine(client="official")
    double.go.clear()
    _, pages = memory(20, [PAGE])
    batch = read_batch([fd] * 20, [i * PAGE for i in range(20)], pages)
    begin = time.monotonic()
    assert set(engine.read(batch, Deadline.after_ms(50)).results) == {-errno.ETIMEDOUT}
    assert time.monotonic() - begin < 3
    assert engine.stats()["quarantined"] == SMALL.ring_entries
    double.go.set()
    assert engine.read(batch, soon()).results.tolist() == [PAGE] * 20  # by the other ring
    while engine.stats()["quarantined"]:
        engine.read(batch, soon())
    assert engine.stats()["late"] == SMALL.ring_entries


def test_a_hung_daemon_costs_each_call_its_deadline(
    fs: ThreeFs, open_engine: Opener, fd: int
) -> None:
    engine = open_engine()
    fs.set(hang_share=1)
    block, pages = memory(20, [PAGE])
    batch = read_batch([fd] * 20, [i * PAGE for i in range(20)], pages)
    for _ in range(3):  # more calls than rings
        begin = time.monotonic()
        assert set(engine.read(batch, Deadline.after_ms(50)).results) == {-errno.ETIMEDOUT}
        assert 0.05 <= time.monotonic() - begin < 3
    assert engine.stats()["quarantined"] == 2 * SMALL.ring_entries
    fs.reset()
    fs.wait_until(lambda counters: counters["held"] == 0)
    assert engine.read(batch, soon()).results.tolist() == [PAGE] * 20
    served = contents(block, pages)
    assert served == [backing(fs, "data")[i * PAGE : (i + 1) * PAGE] for i in range(20)]
    while engine.stats()["quarantined"]:
        time.sleep(0.001)
    assert engine.stats()["connects"] == 1


@pytest.mark.parametrize("client", ["own", "official"])
def test_writes_that_may_still_happen_are_named(
    open_engine: Opener, fs: ThreeFs, fd: int, index: int, double: OfficialDouble, client: str
) -> None:
    engine = open_engine(client=client)
    _, pages = memory(3, [PAGE])
    fs.set(hang_share=1)
    double.go.clear()
    slots = [4, 5, 9]
    batch = write_batch(fd, [s * PAGE for s in slots], pages, index_fd=index, slots=slots)
    result = engine.write(batch, Deadline.after_ms(30))
    assert set(result.results.tolist()) == {-errno.ETIMEDOUT}
    inode = os.fstat(fd).st_ino
    assert engine.writes_in_doubt() == {(inode, slot * PAGE) for slot in slots}
    assert backing(fs, "index") == b"\xee" * 64 * 64  # no record of a page that is in doubt
    fs.reset()
    double.go.set()
    while engine.writes_in_doubt() or engine.stats()["quarantined"]:
        _, one = memory(1, [PAGE])
        engine.write(write_batch(fd, [0], one), soon())


def test_memory_of_the_library_is_not_copied(open_engine: Opener, fs: ThreeFs, fd: int) -> None:
    engine = open_engine()
    memory = engine.allocate(8 * PAGE)
    pages = Pages.from_pointers(
        [memory.address + i * PAGE for i in range(8)], [PAGE] * 8, pieces=1, keep=(memory,)
    )
    batch = read_batch([fd] * 8, [(i + 5) * PAGE for i in range(8)], pages)
    result = engine.read(batch, soon())
    expected = backing(fs, "data")[5 * PAGE : 13 * PAGE]
    assert result.results.tolist() == [PAGE] * 8
    assert memory.memory[:] == expected
    assert result.checksums.tolist() == checksums(
        [expected[i * PAGE : (i + 1) * PAGE] for i in range(8)]
    )
    written = engine.write(write_batch(fd, [i * PAGE for i in range(8)], pages), soon())
    assert written.checksums.tolist() == result.checksums.tolist()
    assert backing(fs, "data")[: 8 * PAGE] == expected
    fs.set(hang_share=1)
    engine.read(batch, Deadline.after_ms(30))
    assert memory.busy(0, PAGE)
    fs.reset()
    fs.wait_until(lambda counters: counters["held"] == 0)
    while memory.busy(0, 8 * PAGE):
        time.sleep(0.001)
    assert leftovers(fs)[8:] == []  # 4 rings, 2 of staging, this memory


def test_registered_memory_lives_as_long_as_its_registration(open_engine: Opener) -> None:
    engine = open_engine()
    memory = weakref.ref(engine.allocate(PAGE))
    gc.collect()
    assert memory() is not None
    engine.close()
    gc.collect()
    assert memory() is None


def test_closing_leaves_nothing(engine: UsrbioEngine, fs: ThreeFs, fd: int) -> None:
    engine.close()
    engine.close()
    assert leftovers(fs) == []
    _, pages = memory(1, [PAGE])
    with pytest.raises(StorageClosed):
        engine.read(read_batch([fd], [0], pages), soon())


def test_a_forked_child_asks_nobody_and_leaves_the_parent_its_rings(
    open_engine: Opener, fd: int
) -> None:
    engine = open_engine()
    _, pages = memory(1, [PAGE])
    batch = read_batch([fd], [0], pages)
    child = os.fork()
    if not child:
        try:
            assert "quarantined" not in engine.stats()
            assert engine.writes_in_doubt() == set()
            engine.read(batch, soon())
        except StorageClosed:
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.read(batch, soon()).results.tolist() == [PAGE]


def test_a_forked_child_closes_at_once_though_a_thread_of_its_parent_connected_meanwhile(
    open_engine: Opener,
) -> None:
    engine = open_engine()
    with engine._lock:
        child = os.fork()
        if not child:
            try:
                signal.alarm(20)
                engine.close()
            except BaseException:
                os._exit(1)
            os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert engine.stats()["quarantined"] == 0


def test_a_system_without_a_thread_left_is_an_error_of_the_storage_and_passes(
    open_engine: Opener, monkeypatch: pytest.MonkeyPatch
) -> None:
    def none_left(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", none_left)
        with pytest.raises(StorageUnavailable, match="can't start new thread"):
            open_engine()
    open_engine()


def test_a_path_elsewhere_is_refused_with_the_remedy(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match=r"not fuse\.hf3fs; mount 3FS there"):
        UsrbioEngine(str(tmp_path), SMALL)


def test_a_mount_that_serves_no_rings_is_refused_with_the_remedy(
    open_engine: Opener, fs: ThreeFs
) -> None:
    fs.set(fail_share=1, fail_errno=errno.EREMOTEIO)
    with pytest.raises(StorageUnavailable, match=r"self-test failed.*Remote I/O error"):
        open_engine()
    assert leftovers(fs) == []
    fs.reset()
    fs.set(read_only=1)
    with pytest.raises(StorageUnavailable, match="not writable"):
        open_engine()


def test_a_daemon_that_does_not_see_our_shared_memory_is_refused_with_the_remedy(
    open_engine: Opener, fs: ThreeFs
) -> None:
    fs.set(refuse_errno=errno.ENOENT)
    with pytest.raises(StorageUnavailable, match=r"takes no registration.*--ipc=host"):
        open_engine()
    fs.reset()
    Path((fs.iovs / layout.SUBMIT_LINK).readlink()).unlink()
    with pytest.raises(StorageUnavailable, match=r"semaphore .* is not here.*--ipc=host"):
        open_engine()
    assert leftovers(fs) == []


def test_too_little_shared_memory_is_refused_with_the_remedy(open_engine: Opener) -> None:
    settings = RingSettings(rings=1, entries=1 << 20, staging_bytes=1 << 50)
    with pytest.raises(StorageUnavailable, match=r"shm is too small.*--shm-size"):
        open_engine(settings)


def test_settings_that_cannot_be_are_refused(open_engine: Opener) -> None:
    with pytest.raises(ConfigError, match="auto, official, own"):
        open_engine(client="other")
    for wrong in (
        {"block_bytes": 1000},
        {"rings": 0},
        {"staging_bytes": 1 << 20},
        {"entries": 128, "staging_bytes": 128 << 20},
    ):
        with pytest.raises(ConfigError):
            RingSettings(**wrong)
