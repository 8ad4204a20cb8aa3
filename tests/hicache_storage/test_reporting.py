"""What page stores tell the registry of themselves, and how they obey its orders."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends.errors import StorageHung
from hicache_backends.nvme import NvmeOptions
from hicache_backends.outcomes import Reason
from hicache_backends.testing.eviction import StubKeeper
from hicache_storage.page_store import PageStore
from hicache_storage.tally import HotPages, Tally
from hicache_storage.tools.tool_store import open_tool_store
from kvmanager import figures, keys, reports, upkeep
from kvmanager.model import Orders
from tests.hicache_storage.test_shared_pages import (
    NAMESPACE,
    PAGE,
    REGISTRY,
    SLOT,
    blank,
    flip_a_bit,
    hashes,
    read,
    server,
    write,
)
from tests.kvmanager.members import eventually
from tests.kvmanager.servers import Server

__all__ = ["server"]

TAG = keys.tag(NAMESPACE.fingerprint)
Open = Callable[..., PageStore]


@pytest.fixture(autouse=True)
def reports_at_every_beat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upkeep, "EVERY_S", 0.0)


@pytest.fixture
def open_store(tmp_path: Path, server: Server) -> Iterator[Open]:
    opened: list[PageStore] = []

    def make(*, pages: int = 1024, roots: tuple[str, ...] = ("root",)) -> PageStore:
        options = NvmeOptions(
            tuple(str(tmp_path / root) for root in roots),
            capacity_bytes=pages * SLOT,
            segment_bytes=8 * SLOT,
            free_floor_bytes=0,
        )
        store, _ = open_tool_store(
            NAMESPACE, options, endpoint=server.url, registry_options=REGISTRY
        )
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def sums(server: Server) -> dict[str, int]:
    with server.client() as client:
        return {name.decode(): int(n) for name, n in client.hgetall(b"t" + TAG).items()}


def gauges(server: Server) -> list[reports.Gauges]:
    """Of every process that has reported."""
    with server.client() as client:
        packed = [client.get(key) for key in client.keys(b"i" + TAG + b"*")]
    records = [reports.unpacked(record) for record in packed if record]
    return [record.gauges for record in records if record is not None]


def order(server: Server, name: bytes, fields: dict[bytes, Any]) -> None:
    with server.client() as client:
        client.hset(name + TAG, mapping=fields)


def claims(server: Server) -> set[bytes]:
    """Pages that are being written, as the registry knows; what has ended may be listed still."""
    with server.client() as client:
        return {digest for key in client.keys(b"c*") for digest in client.hkeys(key)}


def lift(server: Server, name: bytes, field: bytes) -> None:
    with server.client() as client:
        client.hdel(name + TAG, field)


def total(counters: dict[str, int], family: str) -> int:
    return sum(figures.family(counters, family).values())


def test_the_sums_of_two_processes_are_what_both_did_and_add_up(
    server: Server, open_store: Open
) -> None:
    a, b = open_store(), open_store()
    pages, others = hashes(20), hashes(5, "other")
    write(a, pages)
    write(b, [*pages, *others])
    assert b.exists([*pages, *hashes(3, "never")]) == 20
    read(b, [*pages, *hashes(7, "never")])
    assert a.prefetch(pages, blank(20)).wait(5000)
    a.close()
    b.close()
    told = sums(server)
    assert told["put.pages"] == 45
    assert told["put.stored"] == 25
    assert told["put.existed"] == 20
    assert told["put.bytes"] == 25 * PAGE
    assert told["get.pages"] == 47
    assert told["get.hits"] == 40
    assert told["get.bytes"] == 40 * PAGE
    assert told["miss.never_written"] == 7
    assert (told["exists.pages"], told["exists.found"]) == (23, 20)
    assert told["absent.never_written"] == 3
    assert (told["prefetch.pages"], told["prefetch.used"]) == (20, 20)
    assert told["load.us"] > 0
    assert set(told) <= figures.names()
    for operation, calls in (("get", 2), ("put", 2), ("exists", 1), ("publish", 2)):
        assert total(told, f"op.nvme.{operation}") == calls
    assert total(told, "op.nvme.claim") == 2
    assert total(told, "op.nvme.lookup") == 2


def test_a_store_on_several_drives_is_told_once_with_each_of_its_parts(
    server: Server, open_store: Open
) -> None:
    store = open_store(roots=("one", "two"))
    write(store, hashes(40))
    eventually(lambda: sums(server).get("put.stored") == 40)
    eventually(lambda: [each.pages for each in gauges(server)] == [40])
    (told,) = gauges(server)
    assert {part.store for part in told.stores} == {uuid for uuid, _ in store.storage.stores}
    assert sum(part.pages for part in told.stores) == 40
    assert all(part.bytes == part.pages * PAGE for part in told.stores)
    assert (told.kind, told.mode, told.breaker, told.hung) == ("nvme", "read_write", "up", False)
    assert told.bytes == 40 * PAGE
    assert told.capacity_bytes > 0
    assert told.started_s > 1_700_000_000


def test_what_went_is_told_by_cause_and_age(server: Server, open_store: Open) -> None:
    store = open_store(pages=16)
    for key in hashes(40):
        write(store, [key])
    held = int(store.storage.stats()["pages"])
    eventually(lambda: sums(server).get("evicted.capacity") == 40 - held)
    assert total(sums(server), "age") == 40 - held
    gone = hashes(40)[0]
    assert store.exists([gone]) == 0
    eventually(lambda: sums(server).get("absent.evicted") == 1)


def test_the_pages_that_loads_begin_with_most_are_told_since_the_last_report(
    server: Server, open_store: Open
) -> None:
    store = open_store()
    pages = hashes(8)
    write(store, pages)
    seen: Counter[bytes] = Counter()

    def told() -> bool:
        for each in gauges(server):
            seen.update({hot.digest: hot.loads for hot in each.hot})
        return bool(seen)

    read(store, pages[2:])
    eventually(told)
    assert len(seen) == 1
    eventually(lambda: not any(each.hot for each in gauges(server)))


def test_a_process_that_is_ordered_to_read_claims_and_writes_nothing_until_that_is_lifted(
    server: Server, open_store: Open
) -> None:
    store, other = open_store(), open_store()
    pages = hashes(4)
    write(other, pages)
    order(server, b"n", {b"mode": b"read"})
    eventually(lambda: store.mode == other.mode == "read")
    claimed = claims(server)
    asked = total(store.metrics.tally.counters(), "op.nvme.claim")
    refused = write(store, hashes(4, "new"))
    assert {(o.reason, o.detail) for o in refused} == {(Reason.MODE, "mode is read")}
    assert total(store.metrics.tally.counters(), "op.nvme.claim") == asked
    assert store.storage.stats()["pages"] == 0
    assert claims(server) == claimed
    assert all(read(store, pages))
    eventually(lambda: {each.mode for each in gauges(server)} == {"read"})
    order(server, b"n", {b"mode": b"off"})
    eventually(lambda: store.mode == "off")
    handle = store.prefetch(pages, blank(4))
    assert {o.detail for o in handle.wait(5000) or ()} == {"mode is off"}
    lift(server, b"n", b"mode")
    eventually(lambda: store.mode == "read_write")
    assert all(write(store, hashes(4, "new")))


def test_a_limit_holds_within_a_heartbeat_and_lifted_gives_all_of_it_back(
    server: Server, open_store: Open
) -> None:
    store = open_store(pages=64)
    pages = hashes(40)
    for key in pages:
        write(store, [key])
    ((uuid, _),) = store.storage.stores
    order(server, b"x", {uuid: 10 * PAGE})
    eventually(lambda: store.storage.stats()["pages"] == 10)
    write(store, hashes(30, "more"))
    assert int(store.storage.stats()["pages"]) <= 10
    eventually(lambda: sums(server).get("evicted.quota", 0) >= 30)
    lift(server, b"x", uuid)
    eventually(lambda: all(write(store, pages)))
    assert store.exists(pages) == 40


def test_refusals_by_quota_by_mode_and_for_want_of_space_are_counted_apart(
    server: Server, open_store: Open
) -> None:
    full, limited, reading = open_store(pages=8), open_store(roots=("b",)), open_store(roots=("c",))
    full.storage.set_keeper(StubKeeper(lambda entry: False))
    write(full, hashes(8, "kept"))
    assert {o.reason for o in write(full, hashes(8, "more"))} == {Reason.NO_SPACE}
    order(server, b"x", {uuid: 3 * PAGE for uuid, _ in limited.storage.stores})
    eventually(lambda: [o.ok for o in write(limited, hashes(4, "x"))] == [True] * 3 + [False])
    before = total(limited.metrics.tally.counters(), "refused")
    assert {o.reason for o in write(limited, hashes(5, "y"))} == {None, Reason.QUOTA}
    assert total(limited.metrics.tally.counters(), "refused") == before + 2
    reading.mode = "read"
    assert {o.reason for o in write(reading, hashes(2, "z"))} == {Reason.MODE}
    wanted = {"refused.no_space": 8, "refused.quota": before + 2, "refused.mode": 2}
    eventually(lambda: figures.family(sums(server), "refused") == figures.family(wanted, "refused"))


def test_a_limit_of_a_storage_on_several_drives_is_the_sum_of_theirs(
    server: Server, open_store: Open
) -> None:
    store = open_store(roots=("one", "two"))
    write(store, hashes(40))
    (one, _), (two, _) = store.storage.stores
    order(server, b"x", {one: 4 * PAGE, two: 6 * PAGE})
    eventually(lambda: store.storage.stats()["pages"] == 10)


def test_pages_that_nobody_uses_expire_by_order_and_are_missed_as_such(
    server: Server, open_store: Open
) -> None:
    store = open_store()
    pages = hashes(6)
    write(store, pages)
    order(server, b"n", {b"ttl_ms": 200})
    eventually(lambda: not store.storage.stats()["pages"])
    assert {outcome.reason for outcome in read(store, pages)} == {Reason.EXPIRED}
    eventually(lambda: sums(server).get("evicted.ttl") == 6)


def test_a_tally_loses_nothing_whoever_adds_at_once() -> None:
    tally, each, threads = Tally("nvme"), 2000, 8
    ready = threading.Barrier(threads)

    def count() -> None:
        ready.wait()
        for _ in range(each):
            tally.took("get", 0.001, ("get.pages", 3), late=True)
            tally.loaded(b"first", 5)

    running = [threading.Thread(target=count) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    counted = tally.counters()
    assert counted["get.pages"] == 3 * each * threads
    assert counted["late.nvme.get"] == each * threads
    assert counted[f"op.nvme.get.{figures.bucket(1000)}"] == each * threads
    assert tally.hot() == (reports.Hot(b"first", each * threads, 5 * each * threads),)
    assert tally.hot() == ()


@given(st.lists(st.integers(0, 30), max_size=200))
def test_hot_pages_are_bounded_and_no_frequent_one_is_overlooked(stream: list[int]) -> None:
    places = 8
    hot, truth = HotPages(places), Counter(stream)
    for page in stream:
        hot.add(bytes([page]), 1)
    top = hot.top(places)
    assert len(top) <= places
    found = {each.digest[0]: each.loads for each in top}
    for page, loads in truth.items():
        if loads > len(stream) / places:
            assert loads <= found[page] <= loads + len(stream) / places


def test_loads_are_added_up_though_nobody_asks_for_a_report() -> None:
    tally = Tally("nvme")
    for n in range(1000):
        tally.loaded(n.to_bytes(16, "big"), 4)
        tally.took("get", 0.001, late=False)
    assert len(tally._loads) <= 1
    assert len(tally.hot()) == reports.MAX_HOT


def test_a_store_that_cannot_look_after_reported_pages_obeys_and_reports_on(
    server: Server, open_store: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = open_store(), open_store()
    keys_ = hashes(5)
    write(a, keys_)
    flip_a_bit(tmp_path / "root", keys_[2])

    def hung(*_asked: object) -> None:
        raise StorageHung("the drive does not answer")

    with monkeypatch.context() as patch:
        patch.setattr(a.storage, "recheck", hung)
        read(b, keys_)
        eventually(lambda: len(a._reported) > 0)
        number = sums(server).get("put.pages", 0)
        write(a, hashes(3, "more"))
        eventually(lambda: sums(server).get("put.pages", 0) == number + 3)
    eventually(lambda: a.exists(keys_) == 2)


def test_two_heartbeats_look_after_the_same_reported_pages_without_tripping(
    open_store: Open,
) -> None:
    store = open_store()
    pages = hashes(64)
    write(store, pages)
    entries = tuple(store.storage.entries())
    failed: list[Exception] = []

    def obey() -> None:
        try:
            for _ in range(20):
                store._obey(Orders(epoch=0, bad=entries))
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=obey) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert all(read(store, pages))
