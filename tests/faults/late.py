"""I/O that is late or never comes back."""

from __future__ import annotations

import mmap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageHung
from hicache_backends.outcomes import Reason
from hicache_backends.pages import Pages
from hicache_backends.storage import UNKNOWN, PageStorage
from hicache_backends.testing.canaries import (
    PAGE_BYTES,
    Target,
    canary,
    chain_parents,
    get,
    put,
    soon,
    source,
)
from hicache_backends.testing.concurrency import ConcurrencyTests
from tests.backends.nvme_medium import NvmeMedium
from tests.faults.rig import BLOCK, DELAY, READ, WRITE, Faults
from tests.faults.small_store import CHAINS, check_whole, open_small, play, say


@contextmanager
def returns_within(seconds: float) -> Iterator[None]:
    """The calls inside are quick."""
    began = time.monotonic()
    yield
    took = time.monotonic() - began
    assert took < seconds, f"{took:.2f} s"


def refused_as_hung(call: Callable[[], object]) -> None:
    """The call fails at once because an earlier one is stuck."""
    with returns_within(2):
        try:
            call()
        except StorageHung:
            return
    raise AssertionError("the store takes calls while an I/O is stuck")


def _stuck(root: Path, engine: str, kinds: int) -> tuple[PageStorage, threading.Thread]:
    """A store with a zero-copy get or put that the kernel holds, its deadline well past."""
    faults = Faults.here()
    storage = open_small(root, engine)
    assert all(put(storage, CHAINS[0], parents=chain_parents(CHAINS[0])))
    target = Target(8)
    soon = Deadline.after_ms(200)

    def call() -> None:
        if kinds == READ:
            storage.get(CHAINS[0], target.pages, soon)
        else:
            storage.put(CHAINS[1], source(CHAINS[1]), [UNKNOWN] * 8, soon)

    faults.on(kinds, BLOCK, name=".data")
    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    faults.await_blocked()
    time.sleep(0.6)  # past the deadline and any grace
    return storage, thread


def stuck_read(root: Path, engine: str, kinds: int = READ) -> None:
    """While an I/O is held, calls fail at once, close gives up in time, the process can end."""
    storage, thread = _stuck(root, engine, kinds)
    assert thread.is_alive(), "nothing may return while the kernel can write into its buffers"
    refused_as_hung(lambda: get(storage, CHAINS[0]))
    refused_as_hung(lambda: put(storage, CHAINS[2]))
    refused_as_hung(lambda: storage.remove(CHAINS[0]))
    with returns_within(3):
        assert storage.close(timeout_ms=300) is False
    say("closed")


def stuck_write(root: Path, engine: str) -> None:
    stuck_read(root, engine, WRITE)


def late_read(root: Path, engine: str, kinds: int = READ) -> None:
    """Once the I/O comes back the store goes on as if nothing had been."""
    storage, thread = _stuck(root, engine, kinds)
    Faults.here().clear()
    thread.join(10)
    assert not thread.is_alive()
    check_whole(storage)
    assert storage.close()


def late_write(root: Path, engine: str) -> None:
    late_read(root, engine, WRITE)


def staged_read(root: Path, engine: str) -> None:
    """With staging buffers a get returns by its deadline, and what comes late goes nowhere."""
    faults = Faults.here()
    storage = open_small(root, engine, zero_copy="never")
    assert all(put(storage, CHAINS[0], parents=chain_parents(CHAINS[0])))
    faults.on(READ, BLOCK, name=".data")
    target = Target(8)
    with returns_within(3):
        outcomes = storage.get(CHAINS[0], target.pages, Deadline.after_ms(300))
    assert {outcome.reason for outcome in outcomes} == {Reason.TIMEOUT}, outcomes
    assert faults.seen() > 0
    for row in target.rows:
        row[0][:] = b"\x5a" * PAGE_BYTES
    faults.clear()
    time.sleep(0.3)
    assert all(target[i] == b"\x5a" * PAGE_BYTES for i in range(8)), "a late write"
    check_whole(storage)
    assert storage.close()


def staged_write(root: Path, engine: str) -> None:
    """With staging buffers a put returns by its deadline, and its source may change at once."""
    faults = Faults.here()
    storage = open_small(root, engine, zero_copy="never")
    faults.on(WRITE, BLOCK, name=".data")
    buffers = [bytearray(canary(page)) for page in CHAINS[0]]
    pages = Pages.from_buffers(buffers, writable=False)
    with returns_within(3):
        outcomes = storage.put(CHAINS[0], pages, [UNKNOWN] * 8, Deadline.after_ms(300))
    assert {outcome.reason for outcome in outcomes} == {Reason.TIMEOUT}, outcomes
    for buffer in buffers:
        buffer[:] = b"\x5a" * PAGE_BYTES
    faults.clear()
    time.sleep(0.3)
    check_whole(storage)
    assert storage.close()


def paused_write(root: Path, engine: str) -> None:
    """A page is not there before its data and its record are, and not lost by the waiting."""
    faults = Faults.here()
    storage = open_small(root, engine)
    for chain, step in zip(CHAINS, (".data", ".index"), strict=False):
        faults.on(WRITE, BLOCK, name=step)
        writer = threading.Thread(target=put, args=(storage, chain), daemon=True)
        writer.start()
        faults.await_blocked()
        assert storage.contains(chain) == [False] * 8
        outcomes = storage.get(chain, Target(8).pages, soon())
        assert {o.reason for o in outcomes} <= {Reason.BEING_WRITTEN, Reason.NEVER_WRITTEN}
        faults.clear()
        writer.join(20)
        assert get(storage, chain) == [True] * 8
    assert storage.close()


def aligned_read(root: Path, engine: str) -> None:
    """A disk that dawdles over O_DIRECT reads does not stop the process's other threads."""
    faults = Faults.here()
    storage = open_small(root, engine, io_mode="direct")
    assert all(put(storage, CHAINS[0]))
    memory = memoryview(mmap.mmap(-1, 8 * PAGE_BYTES))
    pages = Pages.from_buffers(
        [memory[i * PAGE_BYTES : (i + 1) * PAGE_BYTES] for i in range(8)], writable=True
    )
    fallbacks = storage.stats()["direct_fallbacks"]  # of the put, whose memory is where it is
    faults.on(READ, DELAY, 300, name=".data")
    thread = threading.Thread(target=lambda: storage.get(CHAINS[0], pages, soon()))
    longest, last = 0.0, time.monotonic()
    thread.start()
    while thread.is_alive():
        now = time.monotonic()
        longest, last = max(longest, now - last), now
    assert faults.acted(), "no read was late"
    assert storage.stats()["direct_fallbacks"] == fallbacks, "the reads went through the page cache"
    assert longest < 0.15, f"this thread stood still for {longest:.3f} s"


def slow_churn(root: Path, engine: str) -> None:
    """Every read dawdles between lookup and data while others evict and overwrite."""

    class Slow(ConcurrencyTests):
        pass

    Faults.here().on(READ, DELAY, 3, name=".data")
    medium = NvmeMedium(root, io_engine=engine)
    Slow().test_a_churning_store_never_gives_a_wrong_page(medium)


if __name__ == "__main__":
    play(globals())
