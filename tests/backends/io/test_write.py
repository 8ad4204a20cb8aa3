from __future__ import annotations

import errno
import os
import time
from pathlib import Path

import numpy as np
import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import Engine
from hicache_backends.native_calls import valid_records
from hicache_backends.segment.format import RECORD
from tests.backends.io.batches import checksums, contents, digests, memory, soon, write_batch
from tests.backends.io.shim import Child, compile_shim, run_child

PAGE = 4096


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


def opened(path: Path, flags: int = os.O_RDWR) -> int:
    return os.open(path, flags | os.O_CREAT)


def filled(count: int) -> tuple[list[bytes], np.ndarray, object]:
    block, pages = memory(count, [PAGE])
    block[:] = np.random.default_rng(count).integers(0, 256, block.size, np.uint8)
    return contents(block, pages), block, pages


def test_pages_and_their_records_are_written(engine: Engine, tmp_path: Path) -> None:
    block, pages = memory(5, [1000, 3096])
    block[:] = np.arange(block.size) % 249
    data, index = opened(tmp_path / "data"), opened(tmp_path / "index")
    slots = [3, 1, 0, 7, 2]
    batch = write_batch(data, [s * PAGE for s in slots], pages, index_fd=index, slots=slots)
    got = engine.write(batch, soon(), threads=2)
    assert got.results.tolist() == [PAGE] * 5
    expected = contents(block, pages)
    assert got.checksums.tolist() == checksums(expected)
    stored = (tmp_path / "index").read_bytes()
    assert valid_records(stored).tolist() == [s in slots for s in range(8)]
    records = np.frombuffer(stored, RECORD)[slots]
    assert records["checksum"].tolist() == checksums(expected)
    assert records["digest"].tobytes() == digests(5)
    assert records["generation"].tolist() == [7, 8, 9, 10, 11]
    assert batch.records == records.tobytes()
    written = (tmp_path / "data").read_bytes()
    assert [written[s * PAGE : (s + 1) * PAGE] for s in slots] == expected


def test_a_page_without_a_record_is_data_alone(engine: Engine, tmp_path: Path) -> None:
    _, pages = memory(2, [PAGE])
    data, index = opened(tmp_path / "data"), opened(tmp_path / "index")
    batch = write_batch(data, [0, PAGE], pages, index_fd=index, was_used=[True, True])
    batch.record_fds[0] = -1
    template = bytes(batch.records[:64])
    assert engine.write(batch, soon()).results.tolist() == [PAGE, PAGE]
    assert valid_records((tmp_path / "index").read_bytes()).tolist() == [False, True]
    assert batch.records[:64] == template


def test_a_page_whose_old_record_cannot_be_voided_is_not_written(
    engine: Engine, tmp_path: Path
) -> None:
    _, pages = memory(4, [PAGE])
    data, index = opened(tmp_path / "data"), opened(tmp_path / "index")
    refused = opened(tmp_path / "refused", os.O_RDONLY)
    used = [True, True, False, True]
    batch = write_batch(data, [i * PAGE for i in range(4)], pages, index_fd=index, was_used=used)
    batch.record_fds[1] = refused
    got = engine.write(batch, soon())
    assert got.results.tolist() == [PAGE, -errno.EBADF, PAGE, PAGE]
    written = (tmp_path / "data").read_bytes()
    assert written[PAGE : 2 * PAGE] == bytes(PAGE)
    assert written[:PAGE] == b"\xa5" * PAGE
    assert valid_records((tmp_path / "index").read_bytes()).tolist() == [True, False, True, True]


def test_a_page_whose_data_fails_gets_no_record(engine: Engine, tmp_path: Path) -> None:
    _, pages = memory(3, [PAGE])
    data, index = opened(tmp_path / "data"), opened(tmp_path / "index")
    batch = write_batch(data, [i * PAGE for i in range(3)], pages, index_fd=index)
    batch.fds[1] = opened(tmp_path / "refused", os.O_RDONLY)
    got = engine.write(batch, soon())
    assert got.results.tolist() == [PAGE, -errno.EBADF, PAGE]
    assert valid_records((tmp_path / "index").read_bytes()).tolist() == [True, False, True]


def test_a_page_whose_record_fails_has_failed(engine: Engine, tmp_path: Path) -> None:
    _, pages = memory(3, [PAGE])
    data, index = opened(tmp_path / "data"), opened(tmp_path / "index")
    batch = write_batch(data, [i * PAGE for i in range(3)], pages, index_fd=index)
    batch.record_fds[2] = opened(tmp_path / "refused", os.O_RDONLY)
    assert engine.write(batch, soon()).results.tolist() == [PAGE, PAGE, -errno.EBADF]


def test_a_full_file_system_fails_the_pages_that_do_not_fit(engine: Engine, tmp_path: Path) -> None:
    full = os.open("/dev/full", os.O_RDWR)
    _, pages = memory(3, [PAGE])
    data, index = opened(tmp_path / "data"), opened(tmp_path / "index")
    batch = write_batch(data, [i * PAGE for i in range(3)], pages, index_fd=index)
    batch.fds[1:] = full
    assert engine.write(batch, soon()).results.tolist() == [PAGE, -errno.ENOSPC, -errno.ENOSPC]


def test_nothing_is_touched_after_the_deadline(engine: Engine, tmp_path: Path) -> None:
    (tmp_path / "index").write_bytes(b"\x11" * 64 * 4)
    _, pages = memory(4, [PAGE])
    data, index = opened(tmp_path / "data"), opened(tmp_path / "index")
    used = [True, False, True, False]
    batch = write_batch(data, [i * PAGE for i in range(4)], pages, index_fd=index, was_used=used)
    got = engine.write(batch, Deadline(time.monotonic_ns() - 1))
    assert got.results.tolist() == [-errno.ETIMEDOUT] * 4
    assert (tmp_path / "index").read_bytes() == b"\x11" * 64 * 4
    assert (tmp_path / "data").stat().st_size == 0


WRITE = """
import os, sys
import numpy as np
from hicache_backends.deadline import Deadline
from hicache_backends.io.select import open_engine
from tests.backends.io.batches import memory, write_batch
directory, name, timeout_ms, *slots = sys.argv[1:]
slots = [int(slot) for slot in slots]
data = os.open(directory + "/data", os.O_RDWR)
index = os.open(directory + "/index", os.O_RDWR)
block, pages = memory(len(slots), [4096], fill=0x5A)
batch = write_batch(
    data, [s * 4096 for s in slots], pages, index_fd=index, slots=slots,
    was_used=[s != 9 for s in slots],
)
got = open_engine(name).write(batch, Deadline.after_ms(float(timeout_ms)))
print(got.results.tolist(), data, index)
"""
SLOTS = [2, 3, 7, 9]
both = pytest.mark.parametrize("name", ["native", "posix"])


def write_in_child(
    shim: Path, directory: Path, name: str, rules: str = "", timeout_ms: int = 20_000
) -> Child:
    """Pages over slots of an older batch, of which slot 9 alone has no record."""
    old, index = opened(directory / "data"), opened(directory / "index")
    _, pages = memory(10, [PAGE], fill=0x11)
    from hicache_backends.io.posix import PosixEngine

    before = write_batch(old, [i * PAGE for i in range(10)], pages, index_fd=index)
    before.record_fds[9] = -1
    assert PosixEngine().write(before, soon()).results.tolist() == [PAGE] * 10
    os.close(old)
    os.close(index)
    args = [str(directory), name, str(timeout_ms), *map(str, SLOTS)]
    return run_child(shim, WRITE, *args, rules=rules)


def valid_slots(directory: Path) -> list[int]:
    """Slots with a valid record; each must describe the bytes that lie in its slot."""
    stored = (directory / "index").read_bytes()
    data = (directory / "data").read_bytes()
    records = np.frombuffer(stored, RECORD)
    slots = np.flatnonzero(valid_records(stored)).tolist()
    for slot in slots:
        import crc32c

        digest, page = records["digest"][slot].tobytes(), data[slot * PAGE : (slot + 1) * PAGE]
        low = crc32c.crc32c(digest + page[: PAGE // 2])
        high = crc32c.crc32c(digest + page[PAGE // 2 :])
        assert records["checksum"][slot] == high << 32 | low
    return slots


@both
def test_old_records_go_first_and_new_ones_come_last(shim: Path, tmp_path: Path, name: str) -> None:
    child = write_in_child(shim, tmp_path, name)
    results, data, index = child.output.rsplit(" ", 2)
    assert results == str([PAGE] * 4)
    d, i = int(data), int(index)
    assert child.calls == [
        ("pwrite", i, 2 * 64, 128),  # neighbouring records in one call
        ("pwrite", i, 7 * 64, 64),  # slot 9 held no record
        ("pwritev", d, 2 * PAGE, 2 * PAGE),
        ("pwritev", d, 7 * PAGE, PAGE),
        ("pwritev", d, 9 * PAGE, PAGE),
        ("pwrite", i, 2 * 64, 128),
        ("pwrite", i, 7 * 64, 64),
        ("pwrite", i, 9 * 64, 64),
    ]
    assert valid_slots(tmp_path) == list(range(10))


@both
@pytest.mark.parametrize("call", ["pwrite:1", "pwrite:2", "pwritev:1", "pwritev:3", "pwrite:4"])
def test_killed_at_any_step_no_record_names_other_bytes(
    shim: Path, tmp_path: Path, name: str, call: str
) -> None:
    child = write_in_child(shim, tmp_path, name, f"{call}:kill:9")
    assert child.returncode == -9
    valid = valid_slots(tmp_path)
    untouched = [0, 1, 4, 5, 6, 8]
    rewritten = {"pwrite:1": [7], "pwrite:4": [2, 3, 7]}.get(call, [])
    assert valid == sorted(untouched + rewritten)


@both
def test_torn_records_are_not_valid(shim: Path, tmp_path: Path, name: str) -> None:
    rules = "pwrite:3:short:100,pwrite:4:fail:5"
    child = write_in_child(shim, tmp_path, name, rules)
    assert child.output.startswith(str([PAGE, -errno.EIO, PAGE, PAGE]))
    assert 3 not in valid_slots(tmp_path)


@both
def test_short_and_interrupted_writes_are_gone_on_with(
    shim: Path, tmp_path: Path, name: str
) -> None:
    rules = (
        "pwritev:1:short:5000,pwritev:2:fail:4,pwritev:3:short:1,"
        "pwrite:1:short:70,pwrite:2:fail:4,pwrite:4:short:3"
    )
    child = write_in_child(shim, tmp_path, name, rules)
    assert child.output.startswith(str([PAGE] * 4))
    assert valid_slots(tmp_path) == list(range(10))
    data = (tmp_path / "data").read_bytes()
    for slot in range(10):
        fill = b"\x5a" if slot in SLOTS else b"\x11"
        assert data[slot * PAGE : (slot + 1) * PAGE] == fill * PAGE


@both
def test_pages_written_by_the_deadline_get_their_records(
    shim: Path, tmp_path: Path, name: str
) -> None:
    child = write_in_child(shim, tmp_path, name, "pwritev:1:delay:300", timeout_ms=250)
    assert child.output.startswith(str([PAGE, PAGE, -errno.ETIMEDOUT, -errno.ETIMEDOUT]))
    assert valid_slots(tmp_path)[:6] == [0, 1, 2, 3, 4, 5]
    assert 7 not in valid_slots(tmp_path)
