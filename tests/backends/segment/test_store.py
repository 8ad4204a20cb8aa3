"""Calls that meet each other, and I/O that is slow, stuck or fails."""

from __future__ import annotations

import dataclasses
import errno
import mmap
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import InvalidBuffer, InvalidKey, StorageHung, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.io.engine import ReadBatch, WriteBatch
from hicache_backends.nvme import NvmeStorage, open_nvme
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.pages import Pages
from hicache_backends.segment import foreign, staging, volume
from hicache_backends.storage import ROOT, UNKNOWN, PageEntry
from hicache_backends.testing.canaries import (
    NAMESPACE,
    PAGE_BYTES,
    Target,
    canary,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
    source,
)
from tests.backends.nvme_medium import stored_pages
from tests.backends.segment.faulty import FaultyEngine, Gate, open_faulty
from tests.backends.segment.worker import options
from tests.conftest import need_program


@pytest.fixture
def engine() -> FaultyEngine:
    return FaultyEngine()


@pytest.fixture
def gate() -> Iterator[Gate]:
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def beside() -> Iterator[Callable[..., Future[list[Outcome]]]]:
    """Run a call in another thread."""
    with ThreadPoolExecutor() as pool:
        yield pool.submit


def fill(storage: NvmeStorage, pages: Sequence[bytes]) -> list[bool]:
    return [put(storage, [page], parents=[ROOT])[0].ok for page in pages]


def test_a_page_is_seen_only_once_it_is_written(
    tmp_path: Path, engine: FaultyEngine, gate: Gate, beside: Callable[..., Future[list[Outcome]]]
) -> None:
    storage = open_faulty(options(tmp_path), engine)
    engine.after = gate
    pages = digests_of("a", "b")
    writing = beside(put, storage, pages)
    assert gate.reached.wait(10)
    assert storage.contains(pages) == [False, False]
    outcomes = [*storage.get(pages, Target(2).pages, soon()), *put(storage, pages)]
    assert {outcome.reason for outcome in outcomes} == {Reason.BEING_WRITTEN}
    assert storage.explain(pages[0]).reason is Reason.BEING_WRITTEN
    gate.open()
    assert all(writing.result(10))
    assert storage.contains(pages) == [True, True]
    assert engine.writes == 1
    storage.close()


def test_a_slot_is_not_reused_under_a_reader_and_is_not_lost_after_it(
    tmp_path: Path, engine: FaultyEngine, gate: Gate, beside: Callable[..., Future[list[bool]]]
) -> None:
    storage = open_faulty(options(tmp_path, pages=8), engine)
    old, new = digests_of(*range(8)), digests_of(*range(100, 116))
    assert all(fill(storage, old))
    engine.before = gate
    reading = beside(get, storage, old[:3])
    assert gate.reached.wait(10)
    storage.remove(old[:1])
    assert all(fill(storage, new))
    assert storage.contains(old) == [False, True, True, *[False] * 5]
    gate.open()
    assert reading.result(10) == [True] * 3, "removed or not, they were there when it began"
    assert all(fill(storage, new[:8]))
    assert sum(storage.contains([*old, *new])) == 8
    storage.close()


def test_pages_in_use_leave_no_room_and_that_is_said(
    tmp_path: Path, engine: FaultyEngine, gate: Gate, beside: Callable[..., Future[list[bool]]]
) -> None:
    storage = open_faulty(options(tmp_path, pages=8), engine)
    old = digests_of(*range(8))
    assert all(fill(storage, old))
    engine.before = gate
    reading = beside(get, storage, old)
    assert gate.reached.wait(10)
    assert put(storage, digests_of("new"))[0].reason is Reason.NO_SPACE
    gate.open()
    assert all(reading.result(10))
    assert all(fill(storage, digests_of("new")))
    storage.close()


def _refusals(storage: NvmeStorage) -> list[str]:
    page = digests_of("a")
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: get(storage, page),
        "put": lambda: put(storage, page),
        "contains": lambda: storage.contains(page),
        "remove": lambda: storage.remove(page),
    }
    refused = []
    for name, call in calls.items():
        began = time.monotonic()
        with pytest.raises(StorageHung):
            call()
        assert time.monotonic() - began < 2
        refused.append(name)
    return refused


def test_a_stuck_io_refuses_later_calls_at_once_until_it_comes_back(
    tmp_path: Path, engine: FaultyEngine, gate: Gate, beside: Callable[..., Future[list[Outcome]]]
) -> None:
    storage = open_faulty(options(tmp_path), engine)
    page = digests_of("a")
    put(storage, page)
    engine.before = gate
    stuck = beside(storage.get, page, Target(1).pages, Deadline.after_ms(400))
    assert gate.reached.wait(10)
    assert storage.contains(page) == [True], "not overdue yet"
    while not storage.stats()["hung"]:
        time.sleep(0.01)
    assert len(_refusals(storage)) == 4
    assert storage.close(timeout_ms=50) is False
    gate.open()
    stuck.result(10)
    assert storage.close() is True


def test_a_staged_get_that_is_late_leaves_the_buffer_alone(
    tmp_path: Path, engine: FaultyEngine, gate: Gate
) -> None:
    storage = open_faulty(options(tmp_path, zero_copy="never"), engine)
    pages = digests_of(*range(4))
    put(storage, pages)
    engine.before = gate
    target = Target(4)
    began = time.monotonic()
    outcomes = storage.get(pages, target.pages, Deadline.after_ms(100))
    assert 0.09 < time.monotonic() - began < 3
    assert {outcome.reason for outcome in outcomes} == {Reason.TIMEOUT}
    untouched = [target[i] for i in range(4)]
    gate.open()
    assert storage.close()
    assert [target[i] for i in range(4)] == untouched
    storage = open_nvme(NAMESPACE, options(tmp_path))
    assert get(storage, pages) == [True] * 4
    storage.close()


@pytest.mark.parametrize("stuck", ["before", "after"])
def test_a_staged_put_that_is_late_stores_nothing_and_ends_by_itself(
    tmp_path: Path, engine: FaultyEngine, gate: Gate, stuck: str
) -> None:
    storage = open_faulty(options(tmp_path, pages=8, zero_copy="never"), engine)
    known, fresh = digests_of("known"), digests_of(*range(4))
    put(storage, known)
    setattr(engine, stuck, gate)
    outcomes = storage.put(
        [*known, *fresh], source([*known, *fresh]), [ROOT] * 5, Deadline.after_ms(100)
    )
    assert [outcome.reason for outcome in outcomes] == [None, *[Reason.TIMEOUT] * 4]
    gate.open()
    while storage.stats()["in_flight"]:
        time.sleep(0.01)
    assert storage.contains(fresh) == [False] * 4, "as was said"
    assert not {page.digest for page in stored_pages(tmp_path, NAMESPACE)} & {*fresh}
    assert not any(outcome.existed for outcome in put(storage, fresh))
    assert get(storage, fresh) == [True] * 4
    assert all(fill(storage, digests_of(*range(100, 108)))), "no slot is lost"
    assert storage.close()


def test_a_staged_call_without_a_thread_is_run_in_the_callers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, zero_copy="never"))
    pages = digests_of(*range(6))

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    for page in pages:
        assert put(storage, [page])[0].ok
        assert get(storage, [page]) == [True]
    assert storage.stats()["in_flight"] == 0
    storage.close()


def test_a_staged_call_without_memory_leaks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, zero_copy="never"))
    page = digests_of("a")

    def no_memory(area: object, count: int, page_bytes: int) -> Pages:
        raise OSError(errno.ENOMEM, "no memory")

    with monkeypatch.context() as broken:
        broken.setattr(staging._Area, "pages", no_memory)
        for _ in range(6):
            assert put(storage, page)[0].reason is Reason.TIMEOUT
    assert put(storage, page)[0].ok
    assert get(storage, page) == [True]
    assert (storage.stats()["in_flight"], storage.stats()["pinned"]) == (0, 0)
    storage.close()


def test_staging_memory_is_bounded_and_waits_for_the_deadline_only(
    tmp_path: Path, engine: FaultyEngine, beside: Callable[..., Future[list[Outcome]]]
) -> None:
    storage = open_faulty(options(tmp_path, zero_copy="never"), engine)
    page = digests_of("a")
    put(storage, page)
    release = threading.Event()

    def hold(batch: ReadBatch | WriteBatch) -> None:
        assert release.wait(30)

    engine.before = hold
    far = Deadline.after_ms(20_000)
    held = [beside(storage.get, page, Target(1).pages, far) for _ in range(4)]
    while storage.stats()["in_flight"] < 4:  # type: ignore[operator]  # a number
        time.sleep(0.01)
    time.sleep(0.05)
    (outcome,) = storage.get(page, Target(1).pages, Deadline.after_ms(100))
    assert outcome.reason is Reason.TIMEOUT
    release.set()
    assert all(call.result(10)[0].ok for call in held)
    assert get(storage, page) == [True]
    storage.close()


class Keeper:
    """Keeps what it is told to."""

    def __init__(self) -> None:
        self.keeps: set[bytes] = set()
        self.fails = False

    def may_evict(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
    ) -> list[bool]:
        if self.fails:
            raise RuntimeError("the keeper broke its promise")
        return [entry.digest not in self.keeps for entry in entries]

    def gone(self, entries: Sequence[PageEntry]) -> None:
        pass


def test_a_page_whose_child_is_kept_is_kept_too(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=8))
    chain = digests_of(*range(8))
    put(storage, chain, parents=chain_parents(chain))
    keeper = Keeper()
    keeper.keeps = {chain[6]}
    storage.set_keeper(keeper)
    outcomes = put(storage, digests_of("x", "y", "z"))
    assert storage.contains(chain) == [True] * 7 + [False]
    assert [outcome.reason for outcome in outcomes] == [None, *[Reason.NO_SPACE] * 2]
    storage.close()


def test_a_page_whose_child_is_being_written_stays(
    tmp_path: Path, engine: FaultyEngine, gate: Gate, beside: Callable[..., Future[list[Outcome]]]
) -> None:
    storage = open_faulty(options(tmp_path, pages=8), engine)
    old, child = digests_of(*range(8)), digests_of("child")
    assert all(fill(storage, old))
    calls: list[Future[list[Outcome]]] = []

    class Busy(Keeper):
        def may_evict(
            self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
        ) -> list[bool]:
            if not calls:
                storage.remove(old[7:])
                engine.before = gate
                calls.append(beside(put, storage, child, parents=[entries[0].digest]))
                assert gate.reached.wait(10)
            return [True] * len(entries)

    storage.set_keeper(Busy())
    assert all(put(storage, digests_of("new"), parents=[ROOT]))
    gate.open()
    assert all(calls[0].result(10))
    assert get(storage, [old[0], *child]) == [True, True]
    storage.close()


@pytest.mark.parametrize("broken", ["notice", "find"])
def test_a_call_that_fails_early_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fail(*arguments: object) -> None:
        raise MemoryError

    storage = open_nvme(NAMESPACE, options(tmp_path))
    assert all(put(storage, digests_of("a")))
    part = {"notice": volume.Volume, "find": foreign.ForeignIndex}[broken]
    with monkeypatch.context() as patched:
        patched.setattr(part, broken, fail)
        with pytest.raises(MemoryError):
            (put if broken == "notice" else get)(storage, digests_of("a", "b"))
    assert (storage.stats()["in_flight"], storage.stats()["pinned"]) == (0, 0)
    assert storage.close()


def test_a_keeper_that_fails_costs_no_slot(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=8))
    old = digests_of(*range(8))
    assert all(fill(storage, old))
    keeper = Keeper()
    keeper.fails = True
    storage.set_keeper(keeper)
    with pytest.raises(RuntimeError):
        put(storage, digests_of("x"))
    keeper.fails = False
    assert get(storage, old) == [True] * 8
    assert all(fill(storage, digests_of(*range(100, 108))))
    storage.close()


def test_parents_learned_later_keep_heads(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=8))
    chain = digests_of(*range(4))
    put(storage, chain, parents=[UNKNOWN] * 4)
    storage.learn_parents(chain, chain_parents(chain))
    for turn in range(12):
        get(storage, chain[2:])
        put(storage, digests_of(f"filler {turn}"), parents=[ROOT])
    assert storage.contains(chain) == [True] * 4
    storage.close()


def test_a_batch_is_one_engine_call_whatever_it_touches(
    tmp_path: Path, engine: FaultyEngine
) -> None:
    roots = [tmp_path / "a", tmp_path / "b"]
    storage = open_faulty(options(*roots), engine)
    neighbour = open_nvme(NAMESPACE, options(*roots))
    theirs, ours = digests_of(*range(8)), digests_of(*range(8, 24))
    places = [outcome.location for outcome in put(neighbour, theirs)]
    assert all(put(storage, ours))
    assert engine.writes == 1
    target = Target(24)
    outcomes = storage.get([*theirs, *ours], target.pages, soon(), [*places, *[b""] * 16])
    assert all(outcomes)
    assert engine.reads == 1
    for one in (storage, neighbour):
        one.close()


def test_pages_are_spread_over_the_roots_and_found_on_all(tmp_path: Path) -> None:
    roots = [tmp_path / name for name in "abc"]
    storage = open_nvme(NAMESPACE, options(*roots, pages=64))
    pages = digests_of(*range(96))
    places = [outcome.location for outcome in put(storage, pages)]
    homes = [place[:16] for place in places]
    assert homes == [storage.store_of(page) for page in pages]
    assert {store for store, _ in storage.stores} == {*homes}
    assert min(homes.count(store) for store, _ in storage.stores) >= 16
    storage.close()
    storage = open_nvme(NAMESPACE, options(*roots[::-1], pages=64))
    assert get(storage, pages) == [True] * 96
    storage.close()


def test_one_root_that_fails_costs_its_own_pages_only(
    tmp_path: Path, engine: FaultyEngine, caplog: pytest.LogCaptureFixture
) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    storage = open_faulty(options(good, bad), engine)
    pages = digests_of(*range(64))
    homes = [outcome.location[:16] for outcome in put(storage, pages)]
    lost = [home == storage.stores[1][0] for home in homes]
    engine.fails = lambda fd: str(bad) in str(Path(f"/proc/self/fd/{fd}").readlink())
    outcomes = storage.get(pages, Target(64).pages, soon())
    assert [outcome.ok for outcome in outcomes] == [not gone for gone in lost]
    assert {o.reason for o in outcomes if not o.ok} == {Reason.IO_ERROR}
    assert "bad" in caplog.text
    assert "bad" in str(storage.stats()["failed_roots"])
    assert storage.contains(pages) == [not gone for gone in lost]
    outcomes = put(storage, pages)
    assert [(o.ok, o.existed) for o in outcomes] == [(True, not gone) for gone in lost]
    assert {outcome.location[:16] for outcome in outcomes} == {storage.stores[0][0]}
    assert get(storage, pages) == [True] * 64
    assert storage.close()


def test_a_root_that_works_again_is_taken_back_with_its_pages(
    tmp_path: Path, engine: FaultyEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(volume, "_PROBE_S", 0.05)
    storage = open_faulty(options(tmp_path), engine)
    pages = digests_of(*range(8))
    assert all(put(storage, pages))
    engine.fails = lambda fd: True
    fresh = digests_of(*range(100, 116))
    assert not any(put(storage, fresh))
    assert storage.stats()["failed_roots"]
    assert {o.reason for o in put(storage, fresh)} == {Reason.IO_ERROR}
    assert not any(storage.contains(pages))
    engine.fails = lambda fd: False
    while not all(put(storage, fresh)):
        time.sleep(0.01)
    assert get(storage, pages) == [True] * 8
    assert storage.stats()["failed_roots"] == ""
    storage.close()


def test_a_few_failed_pages_do_not_cost_the_root(tmp_path: Path, engine: FaultyEngine) -> None:
    storage = open_faulty(options(tmp_path, segment_pages=32), engine)
    pages = digests_of(*range(32))
    engine.fails_at = {3, 4, 30}
    for _ in range(5):
        outcomes = put(storage, pages)
        assert {o.reason for o in outcomes if not o.ok} <= {Reason.IO_ERROR}
    assert not storage.stats()["failed_roots"]
    engine.fails_at = set()
    assert all(put(storage, pages))
    assert get(storage, pages) == [True] * 32
    storage.close()


def test_one_of_two_roots_gone_at_the_start_leaves_the_other(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path / "a", tmp_path / "missing" / "b"))
    assert "missing" in caplog.text
    assert storage.stats()["lost_roots"] == 1
    assert "missing" in str(storage.stats()["failed_roots"])
    pages = digests_of(*range(8))
    assert all(put(storage, pages))
    assert get(storage, pages) == [True] * 8
    storage.close()
    with pytest.raises(StorageUnavailable):
        open_nvme(NAMESPACE, options(tmp_path / "missing" / "a", tmp_path / "missing" / "b"))


def test_a_root_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(StorageUnavailable, match="writable"):
        open_nvme(NAMESPACE, options(Path("/proc/hicache")))


def aligned(count: int, page_bytes: int) -> Pages:
    """Zeroed pages on page boundaries."""
    memory = np.frombuffer(mmap.mmap(-1, count * page_bytes), np.uint8).reshape(count, -1)
    return Pages.from_buffers(list(memory), writable=True)


@pytest.mark.parametrize("page_bytes", [64 << 10, 192 << 10, 1 << 20])
def test_pages_of_every_usual_size_move_directly(tmp_path: Path, page_bytes: int) -> None:
    space = _space(page_bytes)
    storage = open_nvme(space, options(tmp_path, capacity_bytes=64 << 20, segment_bytes=16 << 20))
    pages = digests_of(*range(8))
    parents = chain_parents(pages)
    memory = aligned(8, page_bytes)
    for i, page in enumerate(pages):
        memory.keep[0][i][0][:] = canary(page, page_bytes)
    assert all(storage.put(pages, memory, parents, soon()))
    target = aligned(8, page_bytes)
    assert all(storage.get(pages[::-1], target, soon()))
    for i, page in enumerate(pages[::-1]):
        assert target.keep[0][i][0].tobytes() == canary(page, page_bytes)
    stats = storage.stats()
    assert stats["direct_fallbacks"] == 0 or stats["io_mode"] == "buffered"
    storage.close()


@pytest.mark.parametrize("mode", ["auto", "direct", "buffered"])
@pytest.mark.parametrize("page_bytes", [1, 1000, 4095, 4097])
def test_pages_of_odd_sizes_go_through_the_page_cache_and_that_is_counted(
    tmp_path: Path, page_bytes: int, mode: str
) -> None:
    storage = open_nvme(_space(page_bytes), options(tmp_path, io_mode=mode))
    pages = digests_of(*range(8))
    assert all(put(storage, pages, page_bytes=page_bytes))
    assert get(storage, pages, page_bytes=page_bytes) == [True] * 8
    stats = storage.stats()
    assert (stats["direct_fallbacks"] > 0) == (stats["io_mode"] == "direct")  # type: ignore[operator]  # a number
    storage.close()


def _space(page_bytes: int) -> Namespace:
    return dataclasses.replace(NAMESPACE, page_bytes=page_bytes)


@pytest.fixture
def tmpfs(tmp_path: Path) -> Iterator[Path]:
    """A file system of two megabytes."""
    mounted = tmp_path / "small"
    mounted.mkdir()
    command = [need_program("mount"), "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(mounted)]
    if subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("mount -t tmpfs is not permitted here")
    yield mounted
    subprocess.run([need_program("umount"), "-l", str(mounted)], check=True)


def test_a_full_file_system_is_no_space_reads_go_on_and_it_recovers(tmpfs: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmpfs, pages=10_000, segment_pages=64))
    first = digests_of(*range(32))
    assert all(fill(storage, first))
    (tmpfs / "ballast").write_bytes(bytes(1 << 20))
    outcomes = put(storage, digests_of(*range(100, 500)))
    assert sum(outcome.ok for outcome in outcomes) >= 16
    assert {o.reason for o in outcomes if not o.ok} == {Reason.NO_SPACE}
    there = storage.contains(first)
    assert get(storage, first) == there
    slots = storage.stats()["slots"]
    (tmpfs / "ballast").unlink()
    time.sleep(1.1)  # a refusal is believed for a second
    assert all(fill(storage, digests_of(*range(1000, 1064))))
    assert storage.stats()["slots"] > slots  # type: ignore[operator]  # a number
    storage.close()


def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=512, segment_pages=1))
    monkeypatch.setattr(storage._state.files, "_limit", 16)
    pages = digests_of(*range(300))
    assert all(put(storage, pages))
    for start in range(0, 300, 10):
        assert get(storage, pages[start : start + 10]) == [True] * 10
    assert storage.stats()["open_files"] <= 26  # type: ignore[operator]  # a number
    storage.close()


def test_a_page_of_another_size_than_the_namespace_says_is_refused(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path))
    page = digests_of("a")
    with pytest.raises(InvalidBuffer, match=str(PAGE_BYTES)):
        storage.put(page, source(page, 2 * PAGE_BYTES), [ROOT], soon())
    storage.close()


@pytest.mark.parametrize("digest", [b"", b"short", bytes(17), ROOT, UNKNOWN, "text", 7, None])
def test_what_names_no_page_is_refused(tmp_path: Path, digest: Any) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path))
    page = digests_of("a")
    with pytest.raises(InvalidKey):
        storage.put([digest, *page], source([*page, *page]), [ROOT, digest], soon())
    with pytest.raises(InvalidKey):
        storage.get([digest], Target(1).pages, soon())
    assert storage.contains([digest, *page]) == [False, False]
    if not isinstance(digest, bytes):
        with pytest.raises(InvalidKey):
            storage.put(page, source(page), [digest], soon())
    (outcome,) = storage.get(page, Target(1).pages, soon(), [digest])
    assert outcome.reason in (Reason.STALE_LOCATION, Reason.NEVER_WRITTEN)
    assert storage.stats()["in_flight"] == 0
    storage.close()
