"""Threads and memory for calls: few, used again, and gone with the storage."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.fsspec_store import FsspecStore
from hicache_backends.objects.lanes import Area, Call, Lanes
from hicache_backends.objects.storage import ObjectOptions, ObjectStorage
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put


@pytest.fixture
def lanes() -> Iterator[Lanes]:
    lanes = Lanes(FsspecStore("memory://lanes", {}), 3)
    yield lanes
    assert lanes.drain(10_000)


def soon() -> Deadline:
    return Deadline.after_ms(10_000)


def test_calls_one_after_another_use_one_thread_and_one_memory(lanes: Lanes) -> None:
    seen = set()
    for _ in range(5):
        lanes.run(lambda area, call: seen.add((threading.get_ident(), id(area))), soon())
    assert len(seen) == 1


def test_a_call_is_not_held_up_by_one_that_is_at_work(lanes: Lanes) -> None:
    go_on, inside = threading.Event(), threading.Event()

    def first(area: Area, call: Call) -> None:
        inside.set()
        assert go_on.wait(10)

    other = threading.Thread(target=lanes.run, args=(first, soon()))
    other.start()
    assert inside.wait(10)
    lanes.run(lambda area, call: go_on.set(), soon())
    other.join(10)
    assert not other.is_alive()


def test_what_a_call_was_given_is_let_go_of_when_it_ends(lanes: Lanes) -> None:
    class Given:
        def work(self, area: Area, call: Call) -> None:
            """Nothing."""

    given = Given()
    alive = weakref.ref(given)
    lanes.run(given.work, soon())
    del given
    lanes.run(lambda area, call: None, soon())  # the same thread is done with the first by now
    assert alive() is None


def test_no_thread_outlives_its_storage() -> None:
    before = {*threading.enumerate()}
    storage = ObjectStorage(NAMESPACE, FsspecStore("memory://gone", {}), ObjectOptions())
    pages = digests_of("a")
    put(storage, pages)
    assert get(storage, pages) == [True]
    mine = {*threading.enumerate()} - before
    assert mine
    assert storage.close()
    for thread in mine:
        thread.join(10)
        assert not thread.is_alive()
