from __future__ import annotations

import ctypes
import errno
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import Engine
from hicache_backends.pages import Pages
from tests.backends.io.batches import checksums, contents, memory, read_batch, soon
from tests.backends.io.shim import compile_shim, run_child

PAGE = 8192
SLOTS = 64


@pytest.fixture
def path(tmp_path: Path) -> Path:
    data = np.random.default_rng(11).integers(0, 256, PAGE * SLOTS, np.uint8).tobytes()
    (tmp_path / "data").write_bytes(data)
    return tmp_path / "data"


@pytest.fixture
def fd(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    yield fd
    os.close(fd)


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


def test_an_empty_batch_has_no_results(engine: Engine) -> None:
    got = engine.read(read_batch([], [], memory(0, [PAGE])[1]), soon())
    assert got.results.tolist() == []
    assert got.checksums.tolist() == []


@pytest.mark.parametrize("count", [8, 9, 17])
def test_a_hole_in_a_batch_stays_in_its_place(
    engine: Engine, fd: int, path: Path, count: int
) -> None:
    data = path.read_bytes()
    for hole in range(count):
        block, pages = memory(count, [PAGE])
        fds = [-1 if i == hole else fd for i in range(count)]
        got = engine.read(read_batch(fds, [i * PAGE for i in range(count)], pages), soon())
        read = contents(block, pages)
        for i in range(count):
            if i == hole:
                assert got.results[i] == -errno.EBADF
                assert read[i] == b"\xa5" * PAGE
            else:
                assert got.results[i] == PAGE
                assert read[i] == data[i * PAGE : (i + 1) * PAGE]


def test_memory_that_cannot_be_written_fails_its_page_alone(
    engine: Engine, fd: int, path: Path
) -> None:
    block, pages = memory(6, [PAGE])
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    forbidden = libc.mmap(None, PAGE, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
    addresses = pages.addresses.copy()
    addresses[3, 0] = forbidden
    pages = Pages(addresses, pages.sizes, pages.keep)
    got = engine.read(read_batch([fd] * 6, [i * PAGE for i in range(6)], pages), soon())
    expected = [PAGE] * 6
    expected[3] = -errno.EFAULT
    assert got.results.tolist() == expected
    good = [0, 1, 2, 4, 5]
    read = contents(block, pages[good])
    assert read == [path.read_bytes()[i * PAGE : (i + 1) * PAGE] for i in good]


@pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_RDONLY | os.O_DIRECT])
def test_the_end_of_a_file_cuts_the_page_that_it_falls_in(
    engine: Engine, path: Path, flags: int
) -> None:
    with path.open("r+b") as file:
        file.truncate(2 * PAGE + 700)
    fd = os.open(path, flags)
    block = mmap.mmap(-1, 5 * PAGE)
    base = np.frombuffer(block, np.uint8).__array_interface__["data"][0]
    pages = Pages.from_pointers(
        [base + i * PAGE for i in range(5)], [PAGE] * 5, pieces=1, keep=(block,)
    )
    got = engine.read(read_batch([fd] * 5, [i * PAGE for i in range(5)], pages), soon())
    os.close(fd)
    assert got.results.tolist() == [PAGE, PAGE, 700, 0, 0]


@pytest.mark.parametrize("threads", [1, 3, 16])
@pytest.mark.parametrize("pieces", [1, 4])
def test_direct_reads_go_into_the_pieces(
    engine: Engine, path: Path, threads: int, pieces: int
) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    block = mmap.mmap(-1, SLOTS * PAGE)
    base = np.frombuffer(block, np.uint8).__array_interface__["data"][0]
    piece = PAGE // pieces
    starts = base + np.arange(pieces)[None, :] * SLOTS * piece + np.arange(SLOTS)[:, None] * piece
    pages = Pages.from_pointers(
        starts.ravel().astype(np.uint64), [piece] * (SLOTS * pieces), pieces=pieces, keep=(block,)
    )
    order = np.random.default_rng(threads).permutation(SLOTS)
    got = engine.read(
        read_batch([fd] * SLOTS, (order * PAGE).tolist(), pages), soon(), threads=threads
    )
    os.close(fd)
    assert got.results.tolist() == [PAGE] * SLOTS
    data = path.read_bytes()
    expected = [data[i * PAGE : (i + 1) * PAGE] for i in order]
    assert contents(np.frombuffer(block, np.uint8), pages) == expected
    assert got.checksums.tolist() == checksums(expected)


def test_a_page_of_more_pieces_than_a_call_takes_is_read(
    engine: Engine, fd: int, path: Path
) -> None:
    block, pages = memory(3, [4] * 2000)
    got = engine.read(read_batch([fd] * 3, [0, 8000, 16000], pages), soon())
    assert got.results.tolist() == [8000] * 3
    assert b"".join(contents(block, pages)) == path.read_bytes()[:24000]


def test_nothing_begins_after_the_deadline(engine: Engine, fd: int) -> None:
    past = Deadline(time.monotonic_ns() - 1)
    block, pages = memory(5, [PAGE])
    got = engine.read(read_batch([fd] * 5, [i * PAGE for i in range(5)], pages), past)
    assert got.results.tolist() == [-errno.ETIMEDOUT] * 5
    assert contents(block, pages) == [b"\xa5" * PAGE] * 5


READ = """
import os, sys, time
from hicache_backends.deadline import Deadline
from hicache_backends.io.select import open_engine
from tests.backends.io.batches import memory, read_batch, contents
path, name, timeout_ms, threads, *slots = sys.argv[1:]
slots = [int(slot) for slot in slots]
fd = os.open(path, os.O_RDONLY)
block, pages = memory(len(slots), [8192])
batch = read_batch([fd] * len(slots), [slot * 8192 for slot in slots], pages)
start = time.monotonic()
got = open_engine(name).read(batch, Deadline.after_ms(float(timeout_ms)), threads=int(threads))
elapsed = time.monotonic() - start
data = open(path, "rb").read()
right = [data[s * 8192 : s * 8192 + 8192] == page for s, page in zip(slots, contents(block, pages))]
print(elapsed, [(int(r), ok) for r, ok in zip(got.results, right)])
"""

both = pytest.mark.parametrize("name", ["native", "posix"])
# The native engine asks the page cache first; these tests mean the calls that may wait.
UNCACHED = "preadv2:0:fail:11,"


def read_in_child(
    shim: Path, path: Path, name: str, slots: list[int], rules: str, timeout_ms: int = 20_000
) -> tuple[float, list[tuple[int, bool]], list[tuple[str, int, int, int]]]:
    args = [str(path), name, str(timeout_ms), "1", *map(str, slots)]
    child = run_child(shim, READ, *args, rules=UNCACHED + rules)
    assert child.returncode == 0
    elapsed, results = child.output.split(" ", 1)
    calls = [call for call in child.calls if call[0] == "preadv"]
    return float(elapsed), eval(results), calls  # noqa: S307 - printed by the script above


@both
def test_the_deadline_keeps_what_was_read_and_begins_no_more(
    shim: Path, path: Path, name: str
) -> None:
    slots = list(range(0, 40, 2))
    elapsed, results, calls = read_in_child(shim, path, name, slots, "preadv:0:delay:40", 140)
    done = len(calls)
    assert 1 <= done <= 5
    assert results[:done] == [(PAGE, True)] * done
    assert results[done:] == [(-errno.ETIMEDOUT, False)] * (20 - done)
    assert elapsed < 2


@both
def test_neighbours_share_a_transfer_and_failures_find_their_page(
    shim: Path, path: Path, name: str
) -> None:
    slots = [3, 4, 5, 20, 1, 2]
    _, results, calls = read_in_child(shim, path, name, slots, "")
    assert [call[2:] for call in calls] == [(PAGE, 5 * PAGE), (20 * PAGE, PAGE)]
    assert results == [(PAGE, True)] * 6

    # The merged call fails, then the third of the calls that look for the culprit.
    rules = "preadv:1:fail:5,preadv:4:fail:5"
    _, results, calls = read_in_child(shim, path, name, slots, rules)
    expected = [(PAGE, True)] * 6
    expected[slots.index(3)] = (-errno.EIO, False)
    assert results == expected
    assert len(calls) == 7


@both
def test_short_transfers_and_interrupts_are_gone_on_with(shim: Path, path: Path, name: str) -> None:
    rules = "preadv:1:short:5000,preadv:2:short:7001,preadv:3:fail:4,preadv:5:short:1"
    _, results, _ = read_in_child(shim, path, name, [7, 8, 9, 30], rules)
    assert results == [(PAGE, True)] * 4


@both
def test_a_single_failed_page_is_not_tried_again(shim: Path, path: Path, name: str) -> None:
    _, results, calls = read_in_child(shim, path, name, [0, 2, 4], "preadv:2:fail:5")
    assert results == [(PAGE, True), (-errno.EIO, False), (PAGE, True)]
    assert len(calls) == 3


def test_a_small_read_asks_the_page_cache_first(shim: Path, path: Path) -> None:
    args = [str(path), "native", "20000", "1", "0", "5", "1"]
    child = run_child(shim, READ, *args)
    assert [call[0] for call in child.calls] == ["preadv2", "preadv2"]
    missing = run_child(shim, READ, *args, rules="preadv2:2:fail:11")
    assert [call[0] for call in missing.calls] == ["preadv2", "preadv2", "preadv", "preadv"]
    assert missing.output.count("(8192, True)") == 3
