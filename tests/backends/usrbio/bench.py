"""The engine beside a bare loop over a ring of the same stand-in, in one run.

Only the ratio means anything: the stand-in is not 3FS.

    python -m tests.backends.usrbio.bench
"""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

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
from tests.backends.io.batches import digests, memory
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
        self._registrar.run(lambda: self._registrar.link(memory.path, key), deadline)
        memory.unlink()

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


@dataclass(frozen=True)
class Figures:
    """Milliseconds of a batch, the best of several taken in turns. bare: pages left in the iov,
    unchecked; delivered: by the same loop copied to where they belong, and checksummed."""

    bare_ms: float
    delivered_ms: float
    staged_ms: float
    zero_copy_ms: float


def measure(
    directory: Path, *, pages: int, page_bytes: int, times: int, delay_ms: float = 0
) -> Figures:
    """One daemon, one file in its page cache; the three ways in turns."""
    settings = RingSettings(block_bytes=page_bytes, rings=1, staging_bytes=64 * page_bytes)
    with ThreeFs(directory / "backing", directory / "mount", chunk_bytes=page_bytes) as fs:
        engine = UsrbioEngine(str(fs.mount), settings, client="own")
        bare = BareLoop(fs.iovs, settings, page_bytes, directory)
        fd = os.open(fs.mount / f"{uuid.uuid4()}", os.O_RDWR | os.O_CREAT)
        try:
            return _in_turns(fs, engine, bare, fd, pages, page_bytes, times, delay_ms)
        finally:
            os.close(fd)
            bare.close()
            engine.close()


def _in_turns(
    fs: ThreeFs,
    engine: UsrbioEngine,
    bare: BareLoop,
    fd: int,
    pages: int,
    page_bytes: int,
    times: int,
    delay_ms: float,
) -> Figures:
    chunk = np.random.default_rng(1).bytes(page_bytes)
    for i in range(pages):
        os.pwrite(fd, chunk, i * page_bytes)
    inode = os.fstat(fd).st_ino
    offsets = np.random.default_rng(2).permutation(pages).astype(np.int64) * page_bytes
    fds = np.full(pages, fd, np.int32)
    _, foreign = memory(pages, [page_bytes])
    own = engine.allocate(pages * page_bytes)
    addresses = own.address + np.arange(pages, dtype=np.uint64) * np.uint64(page_bytes)
    registered = Pages.from_pointers(
        addresses, np.full(pages, page_bytes, np.uint64), pieces=1, keep=(own,)
    )

    def by_engine(target: Pages) -> Callable[[], None]:
        batch = ReadBatch(fds, offsets, target, digests(pages))

        def read() -> None:
            result = engine.read(batch, Deadline.after_ms(20_000))
            assert (result.results == page_bytes).all()

        return read

    def by_bare_loop() -> None:
        assert bare.read(inode, offsets) == pages

    delivered = np.zeros(pages * page_bytes, np.uint8)

    def by_bare_loop_with_delivery() -> None:
        assert bare.read(inode, offsets, delivered) == pages

    fs.set(delay_ms=delay_ms)
    ways = (
        by_bare_loop,
        by_bare_loop_with_delivery,
        by_engine(foreign),
        by_engine(registered),
    )
    taken: list[list[float]] = [[] for _ in ways]
    for turn in range(times + 1):
        for i in np.random.default_rng(turn).permutation(len(ways)).tolist():
            begin = time.perf_counter()
            ways[i]()
            taken[i].append((time.perf_counter() - begin) * 1e3)
    return Figures(*(min(spent[1:]) for spent in taken))


def main() -> None:
    """Print the ratios."""
    out = sys.stdout
    for page_bytes, delay_ms in ((64 << 10, 0), (1 << 20, 0), (1 << 20, 1), (1 << 20, 5)):
        with tempfile.TemporaryDirectory() as directory:
            f = measure(
                Path(directory), pages=128, page_bytes=page_bytes, times=15, delay_ms=delay_ms
            )
        out.write(
            f"128 pages of {page_bytes >> 10} KiB, {delay_ms} ms a job: bare {f.bare_ms:.1f} ms, "
            f"with copy and checksum {f.delivered_ms:.1f} ms; the engine staged "
            f"{f.staged_ms:.1f} ms (x{f.staged_ms / f.delivered_ms:.2f} of that), zero copy "
            f"{f.zero_copy_ms:.1f} ms (x{f.zero_copy_ms / f.bare_ms:.2f} of bare)\n"
        )


if __name__ == "__main__":
    main()
