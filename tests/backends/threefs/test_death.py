"""The daemon dies, hangs, or is late: calls end in time, nothing wrong is served, and the same
store goes on once there is a daemon again."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageError
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.segment import plain
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import (
    NAMESPACE,
    Target,
    canary,
    digests_of,
    get,
    put,
    source,
)
from hicache_backends.threefs import descriptors
from hicache_backends.threefs.backend import ThreeFsStorage
from tests.backends.threefs.medium import ThreeFsMedium
from tests.threefs.stand_in import ThreeFs, unmount

DEADLINE_MS = 400.0
GRACE_S = 1.0
"""What a busy machine may take on top of a deadline."""
ENGINES = ("usrbio", "fuse")
PASSING = {Reason.IO_ERROR, Reason.TIMEOUT, Reason.BEING_WRITTEN, Reason.NO_SPACE}
ABSENT = {Reason.NEVER_WRITTEN, Reason.EVICTED, Reason.BEING_WRITTEN}


def wait_for(holds: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    end = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < end, what
        time.sleep(0.005)


class Caller:
    """A thread that calls over and over; each page of an answer is checked."""

    def __init__(self, storage: ThreeFsStorage, pages: list[bytes], *, writes: bool) -> None:
        self._storage, self._pages, self._writes = storage, pages, writes
        self._stop = threading.Event()
        self.longest_s = 0.0
        self.served = self.wrong = 0
        self.reasons = Counter[Reason | None]()
        self.raised: list[BaseException] = []
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def end(self) -> None:
        self._stop.set()
        self._thread.join()

    def _work(self) -> None:
        chance = random.Random(id(self))  # noqa: S311 - a choice of pages
        while not self._stop.is_set():
            pages = chance.sample(self._pages, 8)
            begin = time.monotonic()
            try:
                outcomes = self._put(pages) if self._writes else self._get(pages)
            except StorageError:
                self.reasons[Reason.IO_ERROR] += len(pages)
            except BaseException as error:
                self.raised.append(error)
                return
            else:
                self.served += sum(outcome.ok for outcome in outcomes)
                self.reasons.update(outcome.reason for outcome in outcomes)
            self.longest_s = max(self.longest_s, time.monotonic() - begin)
            self._stop.wait(0.002)

    def _put(self, pages: list[bytes]) -> list[Outcome]:
        deadline = Deadline.after_ms(DEADLINE_MS)
        return self._storage.put(pages, source(pages), [UNKNOWN] * len(pages), deadline)

    def _get(self, pages: list[bytes]) -> list[Outcome]:
        target = Target(len(pages))
        outcomes = self._storage.get(pages, target.pages, Deadline.after_ms(DEADLINE_MS))
        for i, outcome in enumerate(outcomes):
            self.wrong += outcome.ok and target[i] != canary(pages[i])
        return outcomes


@contextmanager
def crowd(storage: ThreeFsStorage, pages: list[bytes]) -> Iterator[list[Caller]]:
    """Eight readers and two writers, all of which have been served; what they saw is judged."""
    callers = [Caller(storage, pages, writes=n >= 8) for n in range(10)]
    try:
        wait_for(lambda: all(caller.served for caller in callers), "calls before")
        yield callers
    finally:
        for caller in callers:
            caller.end()
    assert not [caller.raised for caller in callers if caller.raised]
    assert max(caller.longest_s for caller in callers) < DEADLINE_MS / 1000 + GRACE_S
    assert sum(caller.wrong for caller in callers) == 0
    reasons = {reason for caller in callers for reason in caller.reasons}
    assert reasons <= {None} | PASSING | ABSENT


def all_served(callers: list[Caller]) -> None:
    before = [caller.served for caller in callers]
    wait_for(
        lambda: all(c.served > b for c, b in zip(callers, before, strict=True)), "calls afterwards"
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_a_daemon_killed_under_readers_and_writers_is_a_pause(fs: ThreeFs, engine: str) -> None:
    medium = ThreeFsMedium(fs, io_engine=engine)
    storage = medium.open(NAMESPACE, capacity_pages=64)
    pages = digests_of(*range(96))
    put(storage, pages)
    store = storage.stores
    with crowd(storage, pages) as callers:
        fs.set(delay_ms=20, fuse_delay_ms=5)  # so that it dies with I/Os in flight
        time.sleep(0.1)
        fs.kill()
        failed = [sum(caller.reasons[reason] for reason in PASSING) for caller in callers]
        wait_for(
            lambda: all(
                sum(c.reasons[reason] for reason in PASSING) > before
                for c, before in zip(callers, failed, strict=True)
            ),
            "calls that end while there is no daemon",
        )
        fs.restart()
        all_served(callers)
    assert storage.stores == store
    assert storage.stats()["failed_roots"] == ""
    fresh = digests_of("a", "b", "c")
    assert all(put(storage, fresh))
    assert get(storage, fresh) == [True] * 3
    assert storage.close()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_mount_that_is_away_for_a_while_costs_no_page_and_no_local_disk(
    fs: ThreeFs, engine: str
) -> None:
    medium = ThreeFsMedium(fs, io_engine=engine)
    storage = medium.open(NAMESPACE)
    pages = digests_of(*range(16))
    assert all(put(storage, pages))
    before = storage.stores
    fs.kill()
    unmount(fs.mount)
    with pytest.raises(OSError, match="not mounted"):  # as its thread may do at any time
        storage._state.volumes[0].store.sign()
    for _ in range(3):
        for call in (get, put):
            for some in (pages, digests_of("new")):
                with suppress(StorageError):
                    call(storage, some)
    assert [*fs.mount.iterdir()] == []
    fs.start()
    wait_for(lambda: get_quietly(storage, pages) == [True] * 16, "the pages, once it is back")
    assert storage.stores == before
    assert all(put(storage, digests_of("new")))
    assert storage.close()


def get_quietly(storage: ThreeFsStorage, pages: list[bytes]) -> list[bool]:
    try:
        return get(storage, pages)
    except StorageError:
        return []


@contextmanager
def paused(fs: ThreeFs) -> Iterator[None]:
    """It goes on by itself after a while: a call that hangs fails its test, no more."""
    rescue = threading.Timer(25, fs.resume)
    rescue.start()
    fs.pause()
    try:
        yield
    finally:
        rescue.cancel()
        fs.resume()


def timed(what: Callable[[], Any]) -> float:
    begin = time.monotonic()
    with suppress(StorageError):
        what()
    return time.monotonic() - begin


@pytest.mark.parametrize("adopted", [False, True], ids=["own", "adopted"])
@pytest.mark.parametrize("engine", ENGINES)
def test_while_the_daemon_hangs_every_call_ends_in_time(
    fs: ThreeFs, engine: str, adopted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hicache_backends.segment.store._REMOVE_MS", 1000)
    medium = ThreeFsMedium(fs, io_engine=engine)
    storage = medium.open(NAMESPACE, capacity_pages=16)
    pages = digests_of(*range(64))
    put(storage, pages)
    if adopted:
        storage.close()
        storage = medium.open(NAMESPACE, capacity_pages=16)
    here = [page for page, there in zip(pages, storage.contains(pages), strict=True) if there]
    assert len(here) >= 8

    def put_in_time() -> list[Outcome]:
        new = digests_of(*(f"new {i}" for i in range(8)))
        return storage.put(new, source(new), [UNKNOWN] * 8, Deadline.after_ms(DEADLINE_MS))

    def get_in_time() -> list[Outcome]:
        return storage.get(here, Target(len(here)).pages, Deadline.after_ms(DEADLINE_MS))

    in_time: list[Callable[[], Any]] = [put_in_time, get_in_time]
    at_once: list[Callable[[], Any]] = [
        lambda: storage.contains(pages),
        lambda: storage.explain(pages[0]),
        storage.stats,
    ]
    with paused(fs):
        for _ in range(2):
            took = [timed(call) for call in in_time]
            assert max(took) < DEADLINE_MS / 1000 + GRACE_S, took
            took = [timed(call) for call in at_once]
            assert max(took) < 0.2, took
        assert timed(lambda: storage.remove(here[:2])) < 1 + GRACE_S
    wait_for(lambda: _works(storage, here), "the store, once the daemon answers")
    with paused(fs):
        assert timed(lambda: storage.close(500)) < 2 + GRACE_S


def _works(storage: ThreeFsStorage, pages: list[bytes]) -> bool:
    try:
        new = digests_of("fresh")
        return all(put(storage, new)) and get(storage, new) == [True]
    except StorageError:
        return False


def test_a_write_that_lands_late_spoils_no_page_that_came_after_it(fs: ThreeFs) -> None:
    """Slots are few and reused all the time; writes come late, hang and are let go."""
    medium = ThreeFsMedium(fs, io_engine="usrbio", ring_client="own")
    storage = medium.open(NAMESPACE, capacity_pages=24)
    pages = digests_of(*range(72))
    sources = {page: source([page]) for page in pages}
    chance = random.Random(4)  # noqa: S311 - a choice of pages
    reasons = Counter[Reason | None]()
    fs.set(only=2, late_share=0.2, late_ms=60, jitter_ms=4)
    for turn in range(300):
        fs.set(hang_share=0.2 if turn % 4 else 0)
        page = chance.choice(pages)
        deadline = Deadline.after_ms(chance.choice([5, 20, 200]))
        reasons.update(o.reason for o in storage.put([page], sources[page], [UNKNOWN], deadline))
        reasons.update(_looked_at(storage, chance.sample(pages, 8)))
    fs.reset()
    wait_for(lambda: storage.stats()["ring_quarantined"] == 0, "the end of all writes")
    found = Counter(_looked_at(storage, pages))
    assert reasons[Reason.TIMEOUT] > 20
    assert reasons[None] > 100
    assert Reason.CHECKSUM not in {*reasons, *found}
    assert storage.close()
    storage = medium.open(NAMESPACE, capacity_pages=24)
    assert sum(storage.contains(pages)) >= found[None]
    assert Reason.CHECKSUM not in _looked_at(storage, pages)
    assert storage.close()


def _looked_at(storage: ThreeFsStorage, pages: list[bytes]) -> list[Reason | None]:
    target = Target(len(pages))
    outcomes = storage.get(pages, target.pages, Deadline.after_ms(5000))
    for i, outcome in enumerate(outcomes):
        assert not outcome.ok or target[i] == canary(pages[i])
    return [outcome.reason for outcome in outcomes]


def test_writes_that_died_with_the_daemon_keep_no_slot_for_ever(fs: ThreeFs) -> None:
    """Every slot is in doubt and no page is there: no call has a reason to use the rings."""
    medium = ThreeFsMedium(fs, io_engine="usrbio", ring_client="own")
    storage = medium.open(NAMESPACE, capacity_pages=8)
    pages = digests_of(*range(8))
    assert all(put(storage, pages))
    assert all(storage.remove(pages))
    fs.set(hang_share=1, only=2)
    outcomes = storage.put(pages, source(pages), [UNKNOWN] * 8, Deadline.after_ms(100))
    assert {outcome.reason for outcome in outcomes} == {Reason.TIMEOUT}
    assert not any(put(storage, pages[:1])), "a slot is used again that a write may still reach"
    fs.restart()
    wait_for(lambda: all(put_quietly(storage, pages)), "room")
    assert get(storage, pages) == [True] * 8
    assert storage.close()


def put_quietly(storage: ThreeFsStorage, pages: list[bytes]) -> list[bool]:
    try:
        return [outcome.ok for outcome in put(storage, pages)]
    except StorageError:
        return [False]


def test_a_mount_that_comes_back_between_two_looks_costs_no_page(
    fs: ThreeFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = ThreeFsMedium(fs, io_engine="usrbio").open(NAMESPACE)
    pages = digests_of(*range(4))
    assert all(put(storage, pages))
    storage._state.files.forget()
    away = [True]

    def open_plain(path: str, flags: int) -> int:
        if away and away.pop():
            raise FileNotFoundError(path)
        return plain.open_plain(path, flags)

    monkeypatch.setattr(descriptors, "open_plain", open_plain)
    assert get(storage, pages) == [True] * 4
    assert not away
    assert storage.close()
