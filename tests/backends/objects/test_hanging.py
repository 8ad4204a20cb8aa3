"""A store that hangs: each call returns by its deadline, and what comes late touches nothing."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageHung
from hicache_backends.fsspec_store import FsspecStore
from hicache_backends.objects.storage import ObjectOptions, ObjectStorage
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.pages import Pages
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import (
    FILLER,
    NAMESPACE,
    PAGE_BYTES,
    Target,
    canary,
    digests_of,
    get,
    put,
    source,
)
from tests.backends.keepers import Stubborn

LATE_MS = 80


class Sluice(FsspecStore):
    """A store in memory whose calls wait at a gate while it is shut."""

    def __init__(self, name: str) -> None:
        super().__init__(f"memory://sluice-{name}", {})
        self.gate = threading.Event()
        self.gate.set()
        self.waiting = threading.Semaphore(0)
        self.passed = threading.Semaphore(0)

    def _wait(self) -> None:
        if not self.gate.is_set():
            self.waiting.release()
            assert self.gate.wait(30)

    def get_into(self, keys: Sequence[str], objects: Pages, deadline: Deadline) -> list[Outcome]:
        self._wait()
        outcomes = super().get_into(keys, objects, Deadline.after_ms(10_000))
        self.passed.release()
        return outcomes

    def put_from(self, keys: Sequence[str], objects: Pages, deadline: Deadline) -> list[Outcome]:
        self._wait()
        outcomes = super().put_from(keys, objects, Deadline.after_ms(10_000))
        self.passed.release()
        return outcomes

    def exists(self, keys: Sequence[str], deadline: Deadline) -> list[bool]:
        self._wait()
        return super().exists(keys, Deadline.after_ms(10_000))

    def remove(self, keys: Sequence[str], deadline: Deadline) -> list[Outcome]:
        self._wait()
        return super().remove(keys, Deadline.after_ms(10_000))


@pytest.fixture
def store(request: pytest.FixtureRequest) -> Iterator[Sluice]:
    store = Sluice(request.node.name)
    yield store
    store.gate.set()


@pytest.fixture
def storage(store: Sluice) -> Iterator[ObjectStorage]:
    storage = ObjectStorage(NAMESPACE, store, ObjectOptions())
    yield storage
    store.gate.set()
    assert storage.close()


def in_time(call: Callable[[Deadline], list[Outcome]]) -> set[Reason | None]:
    began = time.monotonic()
    outcomes = call(Deadline.after_ms(LATE_MS))
    assert time.monotonic() - began < LATE_MS / 1000 + 2
    return {outcome.reason for outcome in outcomes}


def test_a_late_read_returns_in_time_and_writes_nothing_afterwards(
    storage: ObjectStorage, store: Sluice
) -> None:
    pages = digests_of(*range(4))
    put(storage, pages)
    store.gate.clear()
    target = Target(4)
    assert in_time(lambda by: storage.get(pages, target.pages, by)) == {Reason.TIMEOUT}
    while store.passed.acquire(blocking=False):
        pass
    store.gate.set()
    assert store.passed.acquire(timeout=10)
    assert get(storage, pages) == [True] * 4
    assert [target[i] for i in range(4)] == [bytes([FILLER]) * PAGE_BYTES] * 4


def test_a_late_write_returns_in_time_and_uses_no_memory_that_changed(
    storage: ObjectStorage, store: Sluice
) -> None:
    pages = digests_of(*range(4))
    buffers = [bytearray(canary(page)) for page in pages]
    memory = Pages.from_buffers(buffers, writable=False)
    store.gate.clear()
    late = in_time(lambda by: storage.put(pages, memory, [UNKNOWN] * 4, by))
    assert late == {Reason.TIMEOUT}
    for buffer in buffers:
        buffer[:] = bytes(PAGE_BYTES)
    store.gate.set()
    assert storage.close()
    again = ObjectStorage(NAMESPACE, Sluice(store.name.partition("sluice-")[2]), ObjectOptions())
    target = Target(4)
    for i, outcome in enumerate(again.get(pages, target.pages, Deadline.after_ms(10_000))):
        assert not outcome.ok or target[i] == canary(pages[i])
    assert again.close()


def test_a_page_whose_write_is_late_is_not_written_twice_at_once(
    storage: ObjectStorage, store: Sluice
) -> None:
    pages = digests_of("a")
    store.gate.clear()
    assert in_time(lambda by: storage.put(pages, source(pages), [UNKNOWN], by)) == {Reason.TIMEOUT}
    assert {o.reason for o in put(storage, pages)} == {Reason.BEING_WRITTEN}
    store.gate.set()
    end = time.monotonic() + 10
    while not all(put(storage, pages)) and time.monotonic() < end:
        time.sleep(0.01)
    assert get(storage, pages) == [True]


def test_when_every_lane_is_late_calls_are_refused_at_once_until_one_comes_back(
    storage: ObjectStorage, store: Sluice
) -> None:
    pages = digests_of(*range(8))
    put(storage, pages)
    store.gate.clear()
    for page in pages[:4]:
        assert in_time(lambda by, p=page: storage.get([p], Target(1).pages, by)) == {Reason.TIMEOUT}  # type: ignore[misc]  # mypy infers no types for lambda defaults
    began = time.monotonic()
    with pytest.raises(StorageHung):
        get(storage, pages)
    assert time.monotonic() - began < 3
    assert storage.stats()["late"] == 4
    assert storage.close(timeout_ms=50) is False
    store.gate.set()
    assert storage.close()


def test_it_goes_on_without_a_restart_once_the_store_is_back(
    storage: ObjectStorage, store: Sluice
) -> None:
    pages = digests_of(*range(8))
    put(storage, pages)
    store.gate.clear()
    for page in pages[:4]:
        in_time(lambda by, p=page: storage.get([p], Target(1).pages, by))  # type: ignore[misc]  # as above
    store.gate.set()
    end = time.monotonic() + 10
    while storage.stats()["late"] and time.monotonic() < end:
        time.sleep(0.01)
    assert get(storage, pages) == [True] * 8
    assert storage.contains(pages) == [True] * 8


def test_asking_a_store_that_hangs_ends_too(storage: ObjectStorage, store: Sluice) -> None:
    pages = digests_of("a")
    put(storage, pages)
    store.gate.clear()
    began = time.monotonic()
    assert storage.contains(pages) == [False]
    assert time.monotonic() - began < 4


def test_a_put_after_a_limit_fell_takes_a_few_small_steps_towards_it(store: Sluice) -> None:
    storage = ObjectStorage(NAMESPACE, store, ObjectOptions())
    keeper, many = Stubborn(), digests_of(*range(800))
    put(storage, many)
    storage.set_keeper(keeper)
    storage.restrict(100 * PAGE_BYTES, None)
    assert storage.stats()["known_pages"] == 800
    keeper.lets_go, keeper.asked = True, []
    fresh = digests_of("a", "b")
    assert {outcome.reason for outcome in put(storage, fresh)} == {Reason.QUOTA}
    assert max(keeper.asked) <= 200
    assert 100 < int(storage.stats()["known_pages"]) < 600
    while not all(put(storage, fresh)):
        assert len(keeper.asked) < 20
    assert storage.stats()["known_pages"] == 100
    assert storage.close()


def test_pages_whose_eviction_is_late_are_settled_when_it_ends(store: Sluice) -> None:
    storage = ObjectStorage(NAMESPACE, store, ObjectOptions(4 * PAGE_BYTES))
    pages = digests_of(*range(4))
    for page in pages:
        put(storage, [page])
    store.gate.clear()
    fresh = digests_of("fresh")
    late = in_time(lambda by: storage.put(fresh, source(fresh), [UNKNOWN], by))
    assert late == {Reason.TIMEOUT}
    again = in_time(lambda by: storage.put(pages[:1], source(pages[:1]), [UNKNOWN], by))
    assert again == {Reason.BEING_WRITTEN}, "it would be deleted at once"
    store.gate.set()
    end = time.monotonic() + 10
    while storage.stats()["late"] and time.monotonic() < end:
        time.sleep(0.01)
    assert storage.stats()["pages"] == 3
    assert get(storage, pages) == [False, True, True, True]
    assert storage.close()
