"""Several page stores over one medium and one real registry: shared, verified, never stuck."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache_backends.identity import Namespace, page_digests
from hicache_backends.nvme import NvmeOptions
from hicache_backends.outcomes import Outcome, Reason
from hicache_storage.page_store import PageStore
from hicache_storage.tools.tool_store import open_tool_store
from kvmanager.options import RegistryOptions
from tests.backends.nvme_medium import slot_bytes, stored_pages
from tests.kvmanager.members import eventually
from tests.kvmanager.servers import BINARIES, Server

PAGE = 4096
NAMESPACE = Namespace("m", "r", "bf16", "page_first", 64, PAGE)
REGISTRY = RegistryOptions(
    timeout_ms=300, connect_timeout_ms=300, heartbeat_ms=100, ttl_ms=500, touch_interval_ms=1
)
PATIENT = dataclasses.replace(REGISTRY, timeout_ms=6000, connect_timeout_ms=6000)
SLACK_S = 1.0  # of a busy machine; who waits for the registry's own limit waits much longer
SLOT = slot_bytes(PAGE) + 64


def hashes(n: int, chain: str = "a") -> list[str]:
    return [hashlib.sha256(f"{chain}{i}".encode()).hexdigest() for i in range(n)]


def canaries(keys: list[str]) -> list[bytes]:
    return [hashlib.shake_128(key.encode()).digest(PAGE) for key in keys]


def blank(n: int) -> list[bytearray]:
    return [bytearray(PAGE) for _ in range(n)]


def read(store: PageStore, keys: list[str], timeout_ms: float = 5000) -> list[Outcome]:
    """Get pages and compare each that is ok."""
    buffers = blank(len(keys))
    outcomes = store.get(keys, buffers, timeout_ms=timeout_ms)
    for key, buffer, outcome in zip(keys, buffers, outcomes, strict=True):
        assert not outcome.ok or buffer == canaries([key])[0], "a wrong page was served"
    return outcomes


def write(store: PageStore, keys: list[str]) -> list[Outcome]:
    return store.set(keys, canaries(keys), parent=None)


Open = Callable[..., PageStore]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    binary = BINARIES["valkey"]
    assert binary is not None, "the embedded extra is part of the development extras"
    place = tmp_path / "valkey"
    place.mkdir()
    server = Server(binary, place).start()
    yield server
    server.stop()


@pytest.fixture
def open_store(tmp_path: Path, server: Server) -> Iterator[Open]:
    opened: list[PageStore] = []

    def make(
        *,
        pages: int = 1024,
        roots: tuple[str, ...] = ("root",),
        share: bool = True,
        registry: RegistryOptions = REGISTRY,
    ) -> PageStore:
        paths = tuple(str(tmp_path / root) for root in roots)
        options = NvmeOptions(
            paths, capacity_bytes=pages * SLOT, segment_bytes=8 * SLOT, free_floor_bytes=0
        )
        endpoint = server.url if share else None
        store, _ = open_tool_store(NAMESPACE, options, endpoint=endpoint, registry_options=registry)
        opened.append(store)
        return store

    yield make
    for store in opened:
        store.close()


def flip_a_bit(root: Path, key: str) -> None:
    digest = page_digests(NAMESPACE.fingerprint, [key])[0]
    page = next(p for p in stored_pages(root, NAMESPACE) if p.digest == digest)
    with page.data.open("r+b") as data:
        data.seek(page.at + 99)
        byte = data.read(1)[0]
        data.seek(page.at + 99)
        data.write(bytes([byte ^ 4]))


def test_a_page_of_one_is_a_hit_for_the_other(open_store: Open) -> None:
    a, b = open_store(), open_store()
    keys = hashes(40)
    assert all(write(a, keys))
    assert b.exists(keys) == 40
    assert all(read(b, keys))
    assert [o.detail for o in write(b, keys)] == ["stored by another process"] * 40
    assert b.storage.stats()["pages"] == 0


def test_exists_is_the_union_of_both_in_order(open_store: Open) -> None:
    a, b = open_store(), open_store()
    keys = hashes(6)
    for i, key in enumerate(keys[:5]):
        write((a, b)[i % 2], [key])
    assert a.exists(keys) == 5
    assert b.exists(keys) == 5
    assert a.exists(keys[1:]) == 4


def test_many_writers_of_one_prompt_write_it_once(open_store: Open) -> None:
    stores = [open_store() for _ in range(4)]
    keys = hashes(64)
    ready = threading.Barrier(4)
    results: list[list[Outcome]] = []

    def run(store: PageStore) -> None:
        ready.wait()
        for start in range(0, 64, 8):
            results.append(write(store, keys[start : start + 8]))

    threads = [threading.Thread(target=run, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(outcome.ok for result in results for outcome in result)
    assert sum(int(store.storage.stats()["pages"]) for store in stores) == 64
    for store in stores:
        assert all(read(store, keys))


def test_a_stale_location_is_a_miss_with_that_reason_and_heals(open_store: Open) -> None:
    a, b = open_store(), open_store()
    keys = hashes(4)
    write(a, keys)
    a.storage.set_keeper(None)  # the registry is not told, as if the message was lost
    a.storage.remove(page_digests(NAMESPACE.fingerprint, keys[1:2]))
    assert all(write(a, hashes(1, "in its slot")))
    outcomes = read(b, keys)
    assert [o.reason for o in outcomes] == [None, Reason.STALE_LOCATION, None, None]
    assert b.exists(keys) == 1, "the entry is gone with the first look"
    assert all(write(b, keys))
    assert all(read(a, keys))


def test_a_bad_page_is_found_reported_and_rewritten(open_store: Open, tmp_path: Path) -> None:
    a, b = open_store(), open_store()
    keys = hashes(5)
    write(a, keys)
    flip_a_bit(tmp_path / "root", keys[2])
    outcomes = read(b, keys)
    assert [o.reason for o in outcomes] == [None, None, Reason.CHECKSUM, None, None]
    eventually(lambda: a.exists(keys) == 2)  # its owner was told, looked itself, and dropped it
    assert all(write(b, keys))
    assert all(read(a, keys))
    assert all(read(b, keys))


def test_a_page_that_others_read_is_not_evicted_before_one_that_nobody_reads(
    open_store: Open,
) -> None:
    a, b = open_store(pages=16), open_store(pages=16)
    old, other = hashes(8, "old"), hashes(8, "other")
    write(a, old)
    write(a, other)
    time.sleep(0.3)  # the registry's clock counts tenths of a second
    assert all(read(b, old))
    fresh = hashes(4, "fresh")
    assert all(write(a, fresh))
    assert all(read(b, old)), "read by another process since, though not by its owner"
    assert not all(read(a, other))


def test_a_head_stays_while_its_tail_lies_in_another_store(open_store: Open) -> None:
    a, b = open_store(pages=16), open_store(pages=16)
    chain = hashes(8, "chain")
    write(a, chain[:4])
    assert all(b.set(chain[4:], canaries(chain[4:]), parent=chain[3]))
    for i in range(6):
        write(a, hashes(2, f"noise{i}"))
    assert a.exists(chain) == 8


def test_clear_removes_the_own_pages_everywhere_and_no_others(open_store: Open) -> None:
    a, b = open_store(), open_store()
    write(a, hashes(4, "a"))
    write(b, hashes(4, "b"))
    assert a.clear() == 4
    assert b.exists(hashes(4, "a")) == 0
    assert a.exists(hashes(4, "b")) == 4


def test_two_drives_are_shared_page_by_page(open_store: Open) -> None:
    a, b = open_store(roots=("x", "y")), open_store(roots=("x", "y"))
    keys = hashes(64)
    assert all(write(a, keys))
    assert b.exists(keys) == 64
    assert all(read(b, keys))
    assert {o.detail for o in write(b, keys)} == {"stored by another process"}


def test_losing_one_of_two_drives_loses_its_pages_and_nothing_else(
    open_store: Open, tmp_path: Path
) -> None:
    a, b = open_store(roots=("x", "y")), open_store(roots=("x", "y"))
    keys = hashes(64)
    write(a, keys)
    shutil.rmtree(tmp_path / "y")
    for store in (a, b):
        outcomes = read(store, keys)
        assert len(outcomes) == 64
    fresh = hashes(16, "fresh")
    assert all(write(a, fresh))
    assert all(read(b, fresh))


def test_without_a_registry_at_the_start_a_process_works_alone_and_joins_later(
    open_store: Open, server: Server
) -> None:
    server.kill()
    began = time.monotonic()
    a = open_store()
    assert time.monotonic() - began < 2
    keys = hashes(4)
    assert all(write(a, keys))
    assert all(read(a, keys))
    assert a.explain(hashes(1, "x"))[0].reason is Reason.REGISTRY_DOWN
    server.start()
    b = open_store()
    eventually(lambda: b.exists(keys) == 4)
    assert all(read(b, keys))


def test_a_frozen_registry_holds_nobody_past_the_deadline(open_store: Open, server: Server) -> None:
    a = open_store(registry=PATIENT)
    keys, strange = hashes(4), hashes(4, "x")
    write(a, keys)
    server.freeze()
    try:
        for _ in range(6):
            began = time.monotonic()
            outcomes = read(a, keys + strange, timeout_ms=400)
            assert time.monotonic() - began < 0.4 + SLACK_S
            assert [o.ok for o in outcomes] == [True] * 4 + [False] * 4
            assert {o.reason for o in outcomes[4:]} == {Reason.REGISTRY_DOWN}
            began = time.monotonic()
            assert all(a.set(hashes(2, os.urandom(4).hex()), blank(2), timeout_ms=400))
            assert time.monotonic() - began < 0.4 + SLACK_S
    finally:
        server.thaw()
    b = open_store()
    eventually(lambda: b.exists(keys) == 4 and a.stats()["registry_state"] == "up")


@pytest.mark.parametrize("how", ["flushed", "killed"])
def test_a_registry_that_forgot_everything_is_told_again(
    open_store: Open, server: Server, how: str
) -> None:
    a, b = open_store(), open_store()
    keys = hashes(200)
    write(a, keys)
    if how == "killed":
        server.kill()
        assert all(read(a, keys))
        server.start()
    else:
        with server.client() as client:
            client.flushall()
    eventually(lambda: b.exists(keys) == 200, within_s=10)
    assert all(read(b, keys))


def test_clearing_the_namespace_makes_owners_drop_their_pages(open_store: Open) -> None:
    a, b = open_store(), open_store()
    keys = hashes(4)
    write(a, keys)
    assert b.registry is not None
    b.registry.clear_namespace(b._deadline(None))
    eventually(lambda: a.storage.stats()["pages"] == 0)
    assert b.exists(keys) == 0
    assert all(write(b, keys))
    eventually(lambda: a.exists(keys) == 4)


def test_a_process_that_was_reopened_finds_its_pages_and_announces_them(open_store: Open) -> None:
    a = open_store()
    keys = hashes(32)
    write(a, keys)
    a.close()
    again, b = open_store(), open_store()
    assert again.exists(keys) == 32
    eventually(lambda: b.exists(keys) == 32)
    assert all(read(b, keys))


def test_with_two_drives_nothing_written_during_an_outage_is_forgotten(
    open_store: Open, server: Server
) -> None:
    a, b = open_store(roots=("x", "y")), open_store(roots=("x", "y"))
    server.kill()
    keys = hashes(64)
    assert all(write(a, keys))
    server.start()
    eventually(lambda: b.exists(keys) == 64, within_s=10)
    assert all(read(b, keys))


def test_pages_of_a_dead_process_vanish_too_when_the_namespace_is_cleared(open_store: Open) -> None:
    a, b = open_store(), open_store()
    keys = hashes(8)
    write(a, keys)
    a.close()
    b.close()
    c, d = open_store(), open_store()
    assert max(c.exists(keys), d.exists(keys)) == 8
    assert d.registry is not None
    d.registry.clear_namespace(d._deadline(None))
    eventually(lambda: c.exists(keys) == 0)
    eventually(lambda: d.exists(keys) == 0)


def test_a_set_with_a_stuck_registry_still_stores_within_its_deadline(
    open_store: Open, server: Server
) -> None:
    a = open_store(registry=PATIENT)
    server.freeze()
    try:
        began = time.monotonic()
        assert all(a.set(hashes(4), canaries(hashes(4)), timeout_ms=400))
        assert time.monotonic() - began < 0.4 + SLACK_S
    finally:
        server.thaw()


def test_a_reopened_store_evicts_and_clears_as_before(open_store: Open) -> None:
    first = open_store(pages=16)
    write(first, hashes(4))
    first.close()
    again, other = open_store(pages=16), open_store(pages=16)
    assert {entry.digest for entry in again.storage.entries()} == set(
        page_digests(NAMESPACE.fingerprint, hashes(4))
    )
    for i in range(8):
        keys = hashes(4, f"fresh{i}")
        assert all(write(again, keys))
        assert {len(entry.parent) for entry in again.storage.entries()} == {16}
    assert again.exists(keys) == 4
    assert other.exists(keys) == 4
    assert again.clear() > 0


def test_making_room_with_a_stuck_registry_still_keeps_the_deadline(
    open_store: Open, server: Server
) -> None:
    a = open_store(pages=16, registry=PATIENT)
    write(a, hashes(16, "old"))
    server.freeze()
    try:
        began = time.monotonic()
        fresh = hashes(8, "fresh")
        assert all(a.set(fresh, canaries(fresh), timeout_ms=400))
        assert time.monotonic() - began < 0.4 + SLACK_S
    finally:
        server.thaw()


def test_present_tells_of_each_page_whoever_stored_it(open_store: Open) -> None:
    first, second = open_store(), open_store()
    keys = hashes(9)
    write(first, keys[0:2])
    write(second, keys[4:6])
    write(first, keys[8:])
    expected = [i in (0, 1, 4, 5, 8) for i in range(9)]
    assert first.present(keys) == second.present(keys) == expected
    assert first.present([]) == []
    first.mode = "off"
    assert first.present(keys) == [False] * 9
