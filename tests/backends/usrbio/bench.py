"""The engine beside a bare loop over a ring of the same stand-in, in one run.

Only the ratio means anything: the stand-in is not 3FS.

    python -m tests.backends.usrbio.bench [--spinner]
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hicache_backends import usrbio
from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import ReadBatch
from hicache_backends.pages import Pages
from hicache_backends.usrbio.engine import UsrbioEngine
from hicache_backends.usrbio.layout import SEMAPHORE_BYTES, data_key, ring_bytes, ring_key
from hicache_backends.usrbio.memory import SharedMemory
from hicache_backends.usrbio.own import map_semaphore
from hicache_backends.usrbio.registrar import Registrar
from hicache_backends.usrbio.ring import RingSettings
from tests.backends.io.batches import digests, memory, write_batch
from tests.conftest import need_program
from tests.threefs.stand_in import ThreeFs

_CSRC = Path(usrbio.__file__).parents[1] / "csrc"


class BareLoop:
    """A ring and an iov of its own, read by the loop of bare.c."""

    def __init__(self, iovs: Path, settings: RingSettings, page_bytes: int, build: Path) -> None:
        library = build / "bare.so"
        source = Path(__file__).with_name("bare.c")
        gcc = need_program("gcc")
        sources = [source, _CSRC / "crc32c.c"]
        flags = ["-O3", "-shared", "-fPIC", f"-I{_CSRC}"]
        subprocess.run([gcc, *flags, "-o", library, *sources], check=True)
        loaded = ctypes.CDLL(str(library))
        loaded.bare_init()
        self._read = loaded.bare_read
        self._read.restype = ctypes.c_int64
        self._entries, self._job = settings.ring_entries, settings.job
        self._page_bytes = page_bytes
        self._iov = SharedMemory(self._entries * page_bytes)
        self._ring = SharedMemory(ring_bytes(self._entries))
        deadline = Deadline.after_ms(5000)
        self._registrar = Registrar(str(iovs), lambda: None, deadline)
        key = ring_key(self._ring.uuid, -self._job, for_read=True)
        for target, name in ((self._iov, data_key(self._iov.uuid)), (self._ring, key)):
            self._link(target, name, deadline)
        self._semaphore = np.frombuffer(map_semaphore(self._registrar.semaphore), np.uint8)
        assert self._semaphore.size == SEMAPHORE_BYTES

    def _link(self, memory: SharedMemory, key: str, deadline: Deadline) -> None:
        self._registrar.run(lambda: self._registrar.link(memory, key), deadline)

    def read(self, inode: int, offsets: np.ndarray, target: np.ndarray | None = None) -> int:
        """How many pages came whole; into `target` with their checksums, or left in the iov."""
        sums = np.zeros(len(offsets), np.uint64)
        return int(
            self._read(
                ctypes.c_void_p(self._ring.address),
                ctypes.c_uint32(self._entries),
                ctypes.c_uint32(self._job),
                ctypes.c_void_p(_address(self._semaphore)),
                self._iov.uuid.bytes,
                ctypes.c_uint64(inode),
                ctypes.c_void_p(_address(offsets)),
                ctypes.c_uint64(len(offsets)),
                ctypes.c_uint64(self._page_bytes),
                ctypes.c_void_p(self._iov.address),
                None if target is None else ctypes.c_void_p(_address(target)),
                ctypes.c_void_p(_address(sums)),
            )
        )

    def close(self) -> None:
        self._registrar.close(5)


def _address(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


Ways = dict[str, Callable[[], None]]
BARE, DELIVERED = "bare loop", "bare loop with copy and checksum"
STAGED, ZERO_COPY, WRITE = "read, staged", "read, zero copy", "write, staged"


@contextmanager
def ways_to_move(
    directory: Path, *, pages: int, page_bytes: int, delay_ms: float = 0
) -> Iterator[Ways]:
    """A batch over one daemon, by name. `bare loop` leaves the pages in the iov, unchecked."""
    settings = RingSettings(block_bytes=page_bytes, rings=1, staging_bytes=64 * page_bytes)
    with ThreeFs(directory / "backing", directory / "mount", chunk_bytes=page_bytes) as fs:
        engine = UsrbioEngine(str(fs.mount), settings, client="own")
        bare = BareLoop(fs.iovs, settings, page_bytes, directory)
        fd = os.open(fs.mount / f"{uuid.uuid4()}", os.O_RDWR | os.O_CREAT)
        chunk = np.random.default_rng(1).bytes(page_bytes)
        for i in range(pages):
            os.pwrite(fd, chunk, i * page_bytes)
        fs.set(delay_ms=delay_ms)
        try:
            yield {
                **_by_bare_loop(bare, os.fstat(fd).st_ino, pages, page_bytes),
                **_by_engine(engine, fd, pages, page_bytes),
            }
        finally:
            os.close(fd)
            bare.close()
            engine.close()


def _scattered(pages: int, page_bytes: int) -> NDArray[np.int64]:
    return np.random.default_rng(2).permutation(pages).astype(np.int64) * page_bytes


def _by_bare_loop(bare: BareLoop, inode: int, pages: int, page_bytes: int) -> Ways:
    offsets = _scattered(pages, page_bytes)
    target = np.zeros(pages * page_bytes, np.uint8)

    def read(into: np.ndarray | None) -> None:
        assert bare.read(inode, offsets, into) == pages

    return {BARE: partial(read, None), DELIVERED: partial(read, target)}


def _by_engine(engine: UsrbioEngine, fd: int, pages: int, page_bytes: int) -> Ways:
    offsets = _scattered(pages, page_bytes)
    _, foreign = memory(pages, [page_bytes])
    own = engine.allocate(pages * page_bytes)
    addresses = own.address + np.arange(pages, dtype=np.uint64) * np.uint64(page_bytes)
    sizes = np.full(pages, page_bytes, np.uint64)
    registered = Pages.from_pointers(addresses, sizes, pieces=1, keep=(own,))
    reads = [
        ReadBatch(np.full(pages, fd, np.int32), offsets, target, digests(pages))
        for target in (foreign, registered)
    ]
    writes = write_batch(fd, offsets.tolist(), foreign)

    def read(batch: ReadBatch) -> None:
        result = engine.read(batch, Deadline.after_ms(20_000))
        assert (result.results == page_bytes).all()

    def write() -> None:
        result = engine.write(writes, Deadline.after_ms(20_000))
        assert (result.results == page_bytes).all()

    return {STAGED: partial(read, reads[0]), ZERO_COPY: partial(read, reads[1]), WRITE: write}


def in_turns(ways: Ways, times: int) -> dict[str, float]:
    """Milliseconds of a batch, the best of several taken in turns."""
    taken: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(times + 1):
        for name in np.random.default_rng(turn).permutation(list(ways)).tolist():
            begin = time.perf_counter()
            ways[name]()
            taken[name].append((time.perf_counter() - begin) * 1e3)
    return {name: min(spent[1:]) for name, spent in taken.items()}


@contextmanager
def spinning() -> Iterator[None]:
    """Beside a thread that is busy in Python."""
    stop = threading.Event()

    def spin() -> None:
        while not stop.is_set():
            pass

    thread = threading.Thread(target=spin, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _print_ratios() -> None:
    for page_bytes, delay_ms in ((64 << 10, 0), (1 << 20, 0), (1 << 20, 1), (1 << 20, 5)):
        with (
            tempfile.TemporaryDirectory() as directory,
            ways_to_move(
                Path(directory), pages=128, page_bytes=page_bytes, delay_ms=delay_ms
            ) as ways,
        ):
            ms = in_turns(ways, 15)
        sys.stdout.write(
            f"128 pages of {page_bytes >> 10} KiB, {delay_ms} ms a job: bare {ms[BARE]:.1f} ms, "
            f"with copy and checksum {ms[DELIVERED]:.1f} ms; the engine staged "
            f"{ms[STAGED]:.1f} ms (x{ms[STAGED] / ms[DELIVERED]:.2f} of that), zero copy "
            f"{ms[ZERO_COPY]:.1f} ms (x{ms[ZERO_COPY] / ms[BARE]:.2f} of bare)\n"
        )


def _print_beside_a_spinner() -> None:
    for page_bytes in (64 << 10, 1 << 20):
        with (
            tempfile.TemporaryDirectory() as directory,
            ways_to_move(Path(directory), pages=128, page_bytes=page_bytes) as ways,
        ):
            alone = in_turns(ways, 25)
            with spinning():
                beside = in_turns(ways, 25)
        sys.stdout.write(f"128 pages of {page_bytes >> 10} KiB, ms alone, beside a spinner\n")
        for name in ways:
            sys.stdout.write(
                f"  {name:34} {alone[name]:6.1f} {beside[name]:6.1f} "
                f"+{beside[name] - alone[name]:.1f}\n"
            )


if __name__ == "__main__":
    _print_beside_a_spinner() if "--spinner" in sys.argv else _print_ratios()
