"""The daemon dies, or we do."""

from __future__ import annotations

import contextlib
import errno
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.pages import Pages
from hicache_backends.usrbio import layout
from hicache_backends.usrbio.engine import UsrbioEngine
from hicache_backends.usrbio.memory import SharedMemory, sweep
from hicache_backends.usrbio.own import OwnRings
from tests.backends.io.batches import contents, memory, read_batch, soon
from tests.backends.usrbio.conftest import PAGE, close_quietly, leftovers, shared_memory
from tests.threefs.stand_in import ThreeFs

Opener = Callable[..., UsrbioEngine]
DEADLINE_MS = 400.0
GONE = {-errno.ENOTCONN, -errno.ESTALE, -errno.ETIMEDOUT}


class Caller:
    """Reads the same pages over and over, and opens the file anew when it is told to."""

    def __init__(self, engine: UsrbioEngine, path: Path, data: bytes) -> None:
        self._engine, self._path, self._data = engine, path, data
        self._stop = threading.Event()
        self.longest_s = 0.0
        self.served = 0
        self.refused = 0
        self.wrong = 0
        self.errnos: set[int] = set()
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        fd = -1
        block, pages = memory(16, [PAGE])
        offsets = [i * PAGE for i in range(16)]
        while not self._stop.is_set():
            begin = time.monotonic()
            try:
                if fd < 0:
                    fd = os.open(self._path, os.O_RDONLY)
                result = self._engine.read(
                    read_batch([fd] * 16, offsets, pages), Deadline.after_ms(DEADLINE_MS)
                )
            except (StorageUnavailable, OSError):
                self.refused += 1
                self._stop.wait(0.01)
                continue
            self.longest_s = max(self.longest_s, time.monotonic() - begin)
            found = result.results.tolist()
            if found == [PAGE] * 16:
                self.served += 1
                self.wrong += b"".join(contents(block, pages)) != self._data
                continue
            self.errnos |= {one for one in found if one < 0}
            if -errno.ESTALE in found or -errno.ENOTCONN in found:
                close_quietly(fd)
                fd = -1
        close_quietly(fd)


def wait_for(holds: Callable[[], bool], what: str, timeout_s: float = 20) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.005)


def test_the_daemon_is_killed_under_eight_threads_and_comes_back(
    fs: ThreeFs, open_engine: Opener, fd: int
) -> None:
    engine = open_engine()
    data = (fs.backing / "data").read_bytes()[: 16 * PAGE]
    callers = [Caller(engine, fs.mount / "data", data) for _ in range(8)]
    wait_for(lambda: all(caller.served > 2 for caller in callers), "reads before")
    fs.set(delay_ms=50)  # so that it dies with I/Os in flight
    time.sleep(0.1)
    fs.kill()
    wait_for(lambda: all(caller.refused for caller in callers), "calls that end")
    fs.restart()
    before = [caller.served for caller in callers]
    wait_for(
        lambda: all(c.served > b + 2 for c, b in zip(callers, before, strict=True)), "reads after"
    )
    for caller in callers:
        caller.end()
    assert max(caller.longest_s for caller in callers) < DEADLINE_MS / 1000 + 1.5
    assert sum(caller.wrong for caller in callers) == 0
    assert set().union(*(caller.errnos for caller in callers)) <= GONE
    assert engine.stats()["connects"] == 2
    engine.close()
    assert leftovers(fs) == []


def test_a_call_with_a_late_deadline_ends_soon_after_the_daemon(
    fs: ThreeFs, open_engine: Opener, fd: int
) -> None:
    engine = open_engine()
    fs.set(hang_share=1)
    _, pages = memory(4, [PAGE])
    found: list[list[int]] = []
    call = threading.Thread(
        target=lambda: found.append(
            engine.read(read_batch([fd] * 4, [0] * 4, pages), soon()).results.tolist()
        )
    )
    call.start()
    fs.wait_until(lambda counters: counters["held"] > 0)
    fs.kill()
    begin = time.monotonic()
    call.join()
    assert time.monotonic() - begin < 5
    assert found == [[-errno.ENOTCONN] * 4]
    with pytest.raises(StorageUnavailable, match="restart its hf3fs_fuse_main"):
        engine.read(read_batch([fd] * 4, [0] * 4, pages), soon())


@contextmanager
def stopped(fs: ThreeFs) -> Iterator[None]:
    """The daemon answers nothing, neither rings nor FUSE, and is not dead."""
    fs.pause()
    try:
        yield
    finally:
        fs.resume()


def test_a_stopped_daemon_refuses_an_engine_by_its_deadline(
    fs: ThreeFs, open_engine: Opener
) -> None:
    with stopped(fs):
        begin = time.monotonic()
        with pytest.raises(StorageUnavailable, match="does not answer"):
            open_engine(connect_timeout_ms=200)
        assert time.monotonic() - begin < 2
    wait_for(lambda: not any(t.name.startswith("usrbio") for t in threading.enumerate()), "threads")
    fs.wait_until(lambda counters: counters["dropped"] == counters["registered"])
    assert leftovers(fs) == []


def test_a_stopped_daemon_costs_each_call_its_deadline_and_goes_on(
    fs: ThreeFs, open_engine: Opener, fd: int
) -> None:
    engine = open_engine()
    _, pages = memory(16, [PAGE])
    batch = read_batch([fd] * 16, [i * PAGE for i in range(16)], pages)
    with stopped(fs):
        for _ in range(3):
            begin = time.monotonic()
            assert set(engine.read(batch, Deadline.after_ms(300)).results) == {-errno.ETIMEDOUT}
            assert time.monotonic() - begin < 2
    assert engine.read(batch, soon()).results.tolist() == [PAGE] * 16
    assert engine.stats()["connects"] == 1


def test_after_an_answer_that_cannot_be_the_engine_connects_anew(
    fs: ThreeFs, open_engine: Opener, fd: int
) -> None:
    engine = open_engine()
    _, pages = memory(4, [PAGE])
    batch = read_batch([fd] * 4, [i * PAGE for i in range(4)], pages)
    client = engine._client
    assert isinstance(client, OwnRings)
    for ring in client._rings:
        ring.keep[0].memory[8:12] = b"\xff" * 4  # the head of completions
    fs.set(delay_ms=50)
    assert engine.read(batch, soon()).results.tolist() == [-errno.EPROTO] * 4
    fs.reset()
    assert engine.read(batch, soon()).results.tolist() == [PAGE] * 4
    assert engine.stats()["connects"] == 2


def test_connecting_anew_keeps_no_old_memory_threads_or_descriptors(
    fs: ThreeFs, open_engine: Opener, fd: int
) -> None:
    def held() -> tuple[int, int, int]:
        gc.collect()
        maps = Path("/proc/self/maps").read_text()
        threads = [t for t in threading.enumerate() if t.name.startswith("usrbio")]
        return (
            maps.count("/hicache-"),
            len(threads),
            sum(1 for _ in Path("/proc/self/fd").iterdir()),
        )

    engine = open_engine()
    _, pages = memory(4, [PAGE])
    counts = []
    for _ in range(4):
        file = os.open(fs.mount / "data", os.O_RDONLY)
        found = {-errno.ESTALE}
        while found & GONE:
            with contextlib.suppress(StorageUnavailable):
                batch = read_batch([file] * 4, [0] * 4, pages)
                found = set(engine.read(batch, soon()).results.tolist())
        close_quietly(file)
        wait_for(lambda: held()[1] == 2, "the threads of one connection")
        counts.append(held())
        fs.restart()
    assert len(set(counts)) == 1
    assert engine.stats()["connects"] == 4


def test_memory_that_outlives_its_daemon_is_staged(
    fs: ThreeFs, open_engine: Opener, fd: int
) -> None:
    engine = open_engine()
    own = engine.allocate(PAGE)
    pages = Pages.from_pointers([own.address], [PAGE], pieces=1, keep=(own,))
    fs.set(hang_share=1)
    engine.read(read_batch([fd], [0], pages), Deadline.after_ms(20))
    assert own.busy(0, PAGE)
    fs.restart()
    again = os.open(fs.mount / "data", os.O_RDONLY)
    found = {-errno.ENOTCONN}
    while found & GONE:
        with contextlib.suppress(StorageUnavailable):
            found = set(engine.read(read_batch([again], [0], pages), soon()).results.tolist())
    assert found == {PAGE}
    assert own.memory[:] == (fs.backing / "data").read_bytes()[:PAGE]
    assert not own.busy(0, PAGE)
    os.close(again)


def test_a_client_that_is_killed_leaves_nothing(fs: ThreeFs, fd: int) -> None:
    client = subprocess.Popen(
        [sys.executable, "-m", "tests.backends.usrbio.client", fs.mount, fs.mount / "data"],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert client.stdout
    assert client.stdout.read(3) == b"..."
    assert fs.counters()["registered"] > 0
    client.kill()
    client.wait()
    client.stdout.close()
    fs.wait_until(lambda counters: counters["dropped"] == counters["registered"])
    assert leftovers(fs) == []
    assert shared_memory(client.pid) == []


def test_names_that_a_kill_left_are_taken_away_later() -> None:
    left = Path(layout.SHM_DIR, f"hicache-{os.getpid()}-left")
    left.touch()
    memory = SharedMemory(4096)
    assert not Path(memory.path).exists()
    with memory.named():
        sweep()
        assert Path(memory.path).exists()
    assert not Path(memory.path).exists()
    assert not left.exists()
