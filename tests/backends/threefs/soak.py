"""Many pages through a small store on a daemon that misbehaves in every way it can.

    python -m tests.backends.threefs.soak --pages 1000000 [--engine usrbio] [--client own]

Threads get, put and remove pages of a store that holds a third of them, so that slots are reused
all the time, while the daemon reorders, fails, shortens, loses, delays, hangs, and is killed.
Every buffer is filled beforehand, lies between guards, and is looked at again long after its
call. Says what was counted, and fails where a page was wrong, a buffer was written to late or
beyond its end, or a miss has no reason that the faults explain.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageError
from hicache_backends.identity import Namespace, page_digests
from hicache_backends.outcomes import Reason
from hicache_backends.pages import Pages
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import FILLER, canary
from hicache_backends.threefs.backend import ThreeFsOptions, ThreeFsStorage, open_threefs
from tests.threefs.stand_in import ThreeFs

PAGE = 16 << 10
GUARD = 4096
STRIDE = GUARD + PAGE
MOST = 32
"""Pages of a batch."""
NAMES, HOT, CAPACITY = 1536, 320, 512
"""Pages there are, pages asked for most, pages that the store has room for."""
THREADS = 6
FAULTS = {
    "jitter_ms": 0.2,
    "reorder_ms": 0.5,
    "late_share": 0.01,
    "late_ms": 30,
    "fail_share": 0.005,
    "fail_errno": errno.EREMOTEIO,
    "short_share": 0.005,
    "hole_share": 0.002,
    "zero_share": 0.002,
    "corrupt_share": 0.005,
    "fuse_fail_share": 0.002,
}
HANG_SHARE = 0.02
EXPLAINED = {
    Reason.NEVER_WRITTEN,
    Reason.EVICTED,
    Reason.BEING_WRITTEN,
    Reason.CHECKSUM,
    Reason.TIMEOUT,
    Reason.IO_ERROR,
}
NAMESPACE = Namespace(
    model="soak",
    revision="0",
    kv_dtype="bfloat16",
    layout="page_first",
    page_tokens=64,
    page_bytes=PAGE,
)


class Guarded:
    """Memory for a batch: pages between guards, all of it filled."""

    def __init__(self) -> None:
        self.block = np.full(MOST * STRIDE + GUARD, FILLER, np.uint8)
        start = int(self.block.__array_interface__["data"][0]) + GUARD
        self._addresses = start + STRIDE * np.arange(MOST, dtype=np.uint64)
        self.left = self.block.copy()

    def pages(self, count: int) -> Pages:
        """Room for so many, filled anew."""
        self.block[:] = FILLER
        addresses = self._addresses[:count].reshape(-1, 1)
        return Pages(addresses, np.full((count, 1), PAGE, np.uint64), (self.block,))

    def page(self, i: int) -> np.ndarray:
        return self.block[GUARD + i * STRIDE :][:PAGE]

    def overrun(self, count: int) -> bool:
        """Whether something lies outside of the pages."""
        rows = self.block[: MOST * STRIDE].reshape(MOST, STRIDE)
        beyond = [rows[:, :GUARD], rows[count:], self.block[MOST * STRIDE :]]
        return any(bool((part != FILLER).any()) for part in beyond)

    def leave(self) -> None:
        """The call is over: nothing may change from now on."""
        self.left[:] = self.block

    @property
    def written_late(self) -> bool:
        return bool((self.block != self.left).any())


@dataclass
class Shared:
    """What the threads have in common. `wanted`: pages still to be read."""

    storage: ThreeFsStorage
    digests: list[bytes]
    contents: np.ndarray
    wanted: int
    lock: threading.Lock

    def note_read(self, pages: int) -> None:
        with self.lock:
            self.wanted -= pages


class Worker:
    """One thread. `got`: why pages of gets were missed, None for hits; `stored`: the same of
    puts; `counts`: what must not be, and what was done."""

    def __init__(self, shared: Shared, seed: int) -> None:
        self._shared = shared
        self._chance = random.Random(seed)  # noqa: S311 - a choice of pages
        self._buffers = deque(Guarded() for _ in range(24))
        self.got = Counter[Reason | None]()
        self.stored = Counter[Reason | None]()
        self.counts = Counter[str]()
        self.error: BaseException | None = None
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self) -> None:
        try:
            while self._shared.wanted > 0:
                self._turn()
            self.counts["late writes"] += sum(one.written_late for one in self._buffers)
        except BaseException as error:
            self.error = error

    def _turn(self) -> None:
        rows = self._chance.sample(range(HOT if self._chance.random() < 0.8 else NAMES), MOST)
        timeout_ms = self._chance.choice([15, 100, 1000, 1000])
        try:
            missed = self._get(rows, Deadline.after_ms(timeout_ms))
            if missed:
                self._put(missed, Deadline.after_ms(timeout_ms))
            if self._chance.random() < 0.1:
                self._shared.storage.remove([self._shared.digests[i] for i in rows[:2]])
                self.counts["removed"] += 2
        except StorageError:
            self.counts["refused calls"] += 1
            time.sleep(0.01)

    def _get(self, rows: list[int], deadline: Deadline) -> list[int]:
        """Read pages, judge them; those that were missed."""
        shared, buffer = self._shared, self._buffers[0]
        self._buffers.rotate(-1)
        self.counts["late writes"] += buffer.written_late
        pages = buffer.pages(len(rows))
        self.counts["requested"] += len(rows)
        begin = time.monotonic()
        try:
            outcomes = shared.storage.get([shared.digests[i] for i in rows], pages, deadline)
        except StorageError:
            self.got[Reason.IO_ERROR] += len(rows)
            buffer.leave()
            raise
        finally:
            self.counts["overdue"] += time.monotonic() - begin > 5
        buffer.leave()
        self.got.update(outcome.reason for outcome in outcomes)
        shared.note_read(sum(outcome.ok for outcome in outcomes))
        self.counts["overruns"] += buffer.overrun(len(rows))
        for n, outcome in enumerate(outcomes):
            same = bool((buffer.page(n) == shared.contents[rows[n]]).all())
            self.counts["wrong"] += outcome.ok and not same
        return [i for i, outcome in zip(rows, outcomes, strict=True) if not outcome.ok]

    def _put(self, rows: list[int], deadline: Deadline) -> None:
        shared = self._shared
        pages = Pages.from_buffers([shared.contents[i] for i in rows], writable=False)
        digests = [shared.digests[i] for i in rows]
        outcomes = shared.storage.put(digests, pages, [UNKNOWN] * len(rows), deadline)
        self.stored.update(outcome.reason for outcome in outcomes)


@dataclass(frozen=True)
class Tally:
    """What a soak came to. `quiet`: of a get of every page when all faults were over; `spoilt`:
    reads that the daemon answered with other bytes than there were, or fewer."""

    got: Counter[Reason | None]
    stored: Counter[Reason | None]
    counts: Counter[str]
    quiet: Counter[Reason | None]
    spoilt: int
    stats: dict[str, int | float | str]
    kills: int
    seconds: float

    def faults(self) -> list[str]:
        """What should not have been."""
        wrong = [f"{n} {name}" for name in FORBIDDEN if (n := self.counts[name])]
        unexplained = {*self.got} - EXPLAINED - {None}
        wrong += [f"misses for {reason}" for reason in unexplained]
        if sum(self.got.values()) != self.counts["requested"]:
            wrong.append("outcomes are missing")
        if self.got[Reason.CHECKSUM] > self.spoilt:
            wrong.append("misses for a checksum that no fault explains")
        if {*self.quiet} - {None, Reason.EVICTED, Reason.NEVER_WRITTEN}:
            wrong.append(f"misses without faults: {self.quiet}")
        if self.stats.get("ring_impossible", 0):
            wrong.append("the ring answered what cannot be")
        return wrong

    def text(self) -> str:
        def named(counts: Counter[Reason | None]) -> dict[str, int]:
            return {reason.value if reason else "ok": n for reason, n in counts.most_common()}

        told = ("evicted", "written_pages", "unreadable_pages", "segments_given_up", "connects")
        kept = {k: v for k, v in self.stats.items() if k.removeprefix("ring_") in told}
        facts = {
            "requested": self.counts["requested"],
            "gets": named(self.got),
            "puts": named(self.stored),
            "afterwards": named(self.quiet),
            "spoilt reads": self.spoilt,
            "counts": dict(self.counts),
            "stats": kept,
            "kills": self.kills,
            "seconds": round(self.seconds),
        }
        return json.dumps(facts, indent=1)


FORBIDDEN = ("wrong", "late writes", "overruns", "overdue")


def soak(
    fs: ThreeFs, pages: int, kills: int, *, engine: str, client: str = "own", faults: bool = True
) -> Tally:
    """Read so many pages, and kill the daemon so often meanwhile. Without `faults` it only dies."""
    options = ThreeFsOptions(
        str(fs.mount / "soak"),
        io_engine=engine,
        ring_client=client,
        rings=3,
        staging_bytes=24 << 20,
        capacity_bytes=CAPACITY * (PAGE + 64),
        segment_bytes=CAPACITY // 8 * (PAGE + 64),
        free_floor_bytes=0,
    )
    digests = page_digests(NAMESPACE.fingerprint, [str(i) for i in range(NAMES)])
    contents = np.array([np.frombuffer(canary(digest, PAGE), np.uint8) for digest in digests])
    with contextlib.closing(open_threefs(NAMESPACE, options)) as storage:
        shared = Shared(storage, digests, contents, pages, threading.Lock())
        begin = time.monotonic()
        workers = [Worker(shared, seed) for seed in range(THREADS)]
        spoilt = _trouble(fs, shared, workers, Plan(pages, kills, faults))
        seconds = time.monotonic() - begin
        for error in (worker.error for worker in workers):
            if error:
                raise error
        return Tally(
            sum((worker.got for worker in workers), Counter()),
            sum((worker.stored for worker in workers), Counter()),
            sum((worker.counts for worker in workers), Counter()),
            _quiet(storage, digests),
            spoilt,
            storage.stats(),
            kills,
            seconds,
        )


def _quiet(storage: ThreeFsStorage, digests: list[bytes]) -> Counter[Reason | None]:
    """Why each page is missed when nothing is wrong any more."""
    end = time.monotonic() + 5
    while storage.stats().get("ring_quarantined", 0) and time.monotonic() < end:
        time.sleep(0.01)  # the official client looks for what is late when it uses the ring again
    _reasons(storage, digests)  # the first call after a death may learn of it by its failure
    return _reasons(storage, digests)


def _reasons(storage: ThreeFsStorage, digests: list[bytes]) -> Counter[Reason | None]:
    found = Counter[Reason | None]()
    for start in range(0, NAMES, MOST):
        some = digests[start : start + MOST]
        outcomes = storage.get(some, Guarded().pages(len(some)), Deadline.after_ms(10_000))
        found.update(outcome.reason for outcome in outcomes)
    return found


def _spoilt(fs: ThreeFs) -> int:
    counters = fs.counters()
    return int(counters["corrupted"] + counters["shortened"] + counters["holes"])


@dataclass(frozen=True)
class Plan:
    """How many pages are read, how often the daemon dies meanwhile, whether it fails besides."""

    pages: int
    kills: int
    faults: bool


def _trouble(fs: ThreeFs, shared: Shared, workers: list[Worker], plan: Plan) -> int:
    """Faults come and go until the threads have ended; kills come at even distances. How many
    reads were spoilt."""
    turn, left, spoilt = 0, plan.kills, 0
    while any(worker.thread.is_alive() for worker in workers):
        turn += 1
        fs.reset()
        if plan.faults and turn % 4:
            hangs = turn % 4 == 1
            fs.set(**FAULTS, hang_share=HANG_SHARE if hangs else 0, fuse_hang=hangs)
        workers[0].thread.join(0.25)
        if left and shared.wanted < plan.pages * left / (plan.kills + 1):
            left -= 1
            spoilt += _spoilt(fs)
            fs.kill()
            time.sleep(0.3)
            fs.restart()
    fs.reset()
    return spoilt + _spoilt(fs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, default=1_000_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--engine", default="usrbio")
    parser.add_argument("--client", default="own")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with ThreeFs(directory / "backing", directory / "mount") as fs:
            tally = soak(fs, asked.pages, asked.kills, engine=asked.engine, client=asked.client)
    sys.stdout.write(tally.text() + "\n")
    if faults := tally.faults():
        sys.exit("; ".join(faults))


if __name__ == "__main__":
    main()
