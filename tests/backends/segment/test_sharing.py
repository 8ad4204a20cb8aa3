"""Several processes, one root: stores are taken over, read by location, and never mixed up."""

from __future__ import annotations

import os
import shutil
import signal
import warnings
from pathlib import Path

from hicache_backends.nvme import open_nvme
from hicache_backends.outcomes import Reason
from hicache_backends.segment.format import Location
from hicache_backends.segment.segment import delete_segment
from hicache_backends.storage import ROOT
from hicache_backends.testing.canaries import (
    NAMESPACE,
    Target,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
)
from tests.backends.nvme_medium import NvmeMedium, stored_pages
from tests.backends.segment.worker import Worker, options


def names(word: object, count: int) -> list[str]:
    return [f"{word} {i}" for i in range(count)]


def test_sixteen_processes_open_one_root_at_once(tmp_path: Path) -> None:
    workers = [Worker(tmp_path / "root", wait=False) for _ in range(16)]
    stores = [worker.ready() for worker in workers]
    assert len({*stores}) == 16
    for n, worker in enumerate(workers):
        worker.tell("put", names(n, 4))
    assert all(all(worker.answer()) for worker in workers)
    for n, worker in enumerate(workers):
        if n % 2:
            worker.kill()
        else:
            worker.close()
    again = [Worker(tmp_path / "root", wait=False) for _ in range(16)]
    assert {worker.ready() for worker in again} == {*stores}, "each is taken over by one"
    everything = [name for n in range(16) for name in names(n, 4)]
    owned = [sum(worker.ask("contains", everything)) for worker in again]
    assert min(owned) >= 4
    for worker in again:
        assert worker.ask("get", everything).count(True) >= 4
        worker.close()


def test_after_a_restart_with_fewer_processes_every_page_is_found(tmp_path: Path) -> None:
    workers = [Worker(tmp_path) for _ in range(4)]
    for n, worker in enumerate(workers):
        assert all(worker.ask("put", names(n, 8)))
    for worker in workers:
        worker.kill()
    everything = digests_of(*(name for n in range(4) for name in names(n, 8)))
    storage = open_nvme(NAMESPACE, options(tmp_path))
    assert storage.stats()["pages"] == 8
    assert storage.contains(everything) == [True] * 32
    assert get(storage, everything) == [True] * 32
    assert storage.explain(everything[0]).ok
    storage.close()


def test_pages_of_a_store_that_another_takes_over_and_overwrites_are_never_mixed_up(
    tmp_path: Path,
) -> None:
    first = Worker(tmp_path, pages=24)
    assert all(first.ask("put", names("old", 8)))
    keeper = open_nvme(NAMESPACE, options(tmp_path, pages=24))
    first.kill()
    looker = open_nvme(NAMESPACE, options(tmp_path, pages=24))
    keeper.close()
    old = digests_of(*names("old", 8))
    assert looker.contains(old) == [True] * 8
    again = Worker(tmp_path, pages=24)
    for turn in range(8):
        assert all(again.ask("put", names(f"new {turn}", 8)))
    outcomes = looker.get(old, Target(8).pages, soon())
    assert {outcome.reason for outcome in outcomes} <= {None, Reason.STALE_LOCATION}
    assert get(looker, old) == looker.contains(old), "what was found stale is forgotten"
    again.close()
    looker.close()


def test_a_location_whose_slot_was_reused_is_stale_not_bad(tmp_path: Path) -> None:
    owner = Worker(tmp_path, pages=8)
    places = owner.ask("put", names("old", 8))
    reader = Worker(tmp_path, pages=8)
    assert reader.ask("read", names("old", 8), places) == [""] * 8
    assert all(owner.ask("put", names("new", 8)))
    assert reader.ask("read", names("old", 8), places) == ["stale_location"] * 8
    assert reader.ask("stats")["stale_locations"] == 8
    for worker in (owner, reader):
        worker.close()


def test_a_page_of_another_process_that_is_bad_is_told_from_one_that_moved(tmp_path: Path) -> None:
    medium = NvmeMedium(tmp_path)
    root = medium.roots[0]
    owner = Worker(root)
    places = owner.ask("put", names("page", 8))
    medium.flip_bit(NAMESPACE, digests_of("page 3")[0], 77)
    reader = Worker(root)
    reasons = reader.ask("read", names("page", 8), places)
    assert reasons == ["", "", "", "checksum", "", "", "", ""]
    for worker in (owner, reader):
        worker.close()


def test_a_segment_number_is_never_used_twice(tmp_path: Path) -> None:
    owner = open_nvme(NAMESPACE, options(tmp_path, segment_pages=8))
    old = digests_of(*range(16))
    places = [outcome.location for outcome in put(owner, old)]
    (directory,) = tmp_path.glob("*/*/")
    reader = open_nvme(NAMESPACE, options(tmp_path))
    assert all(reader.get(old, Target(16).pages, soon(), places))
    owner.close()
    delete_segment(str(directory), 2)  # as for the room of another store
    owner = open_nvme(NAMESPACE, options(tmp_path, segment_pages=8))
    new = digests_of(*range(100, 108))
    places = [outcome.location for outcome in put(owner, new)]
    assert {Location.unpack(place).segment for place in places} == {3}
    assert all(reader.get(new, Target(8).pages, soon(), places))
    for storage in (owner, reader):
        storage.close()


def test_a_file_that_came_again_under_its_name_is_opened_anew(tmp_path: Path) -> None:
    owner = open_nvme(NAMESPACE, options(tmp_path))
    pages = digests_of(*range(8))
    places = [outcome.location for outcome in put(owner, pages[:4])]
    reader = open_nvme(NAMESPACE, options(tmp_path))
    assert all(reader.get(pages[:4], Target(4).pages, soon(), places))
    for file in [*tmp_path.rglob("*.data"), *tmp_path.rglob("*.index")]:
        shutil.copy(file, file.with_suffix(".copy"))
        file.with_suffix(".copy").replace(file)
    owner.close()
    owner = open_nvme(NAMESPACE, options(tmp_path))
    places = [outcome.location for outcome in put(owner, pages[4:])]
    outcomes = reader.get(pages[4:], Target(4).pages, soon(), places)
    assert {outcome.reason for outcome in outcomes} == {Reason.STALE_LOCATION}
    assert all(reader.get(pages[4:], Target(4).pages, soon(), places))
    for storage in (owner, reader):
        storage.close()


def test_locations_of_a_store_that_is_gone_are_stale(tmp_path: Path) -> None:
    owner = Worker(tmp_path)
    places = owner.ask("put", names("page", 4))
    reader = Worker(tmp_path)
    owner.close()
    for store in (tmp_path / NAMESPACE.fingerprint.hex()).iterdir():
        if store.name == bytes.fromhex(places[0])[:16].hex():
            for file in store.iterdir():
                file.unlink()
            store.rmdir()
    assert reader.ask("read", names("page", 4), places) == ["stale_location"] * 4
    reader.close()


def test_a_page_stays_readable_while_its_owner_is_killed_and_restarted(tmp_path: Path) -> None:
    owner = Worker(tmp_path)
    places = owner.ask("put", names("page", 4))
    reader = Worker(tmp_path)
    owner.kill()
    assert reader.ask("read", names("page", 4), places) == [""] * 4
    again = Worker(tmp_path)
    assert reader.ask("read", names("page", 4), places) == [""] * 4
    for worker in (reader, again):
        worker.close()


def test_generations_of_a_reopened_store_are_higher_even_if_its_boots_are_forgotten(
    tmp_path: Path,
) -> None:
    boots = []
    for boot in range(4):
        storage = open_nvme(NAMESPACE, options(tmp_path))
        put(storage, digests_of(boot))
        storage.close()
        boots.append(max(page.generation for page in stored_pages(tmp_path, NAMESPACE)) >> 40)
        (owner,) = tmp_path.glob("*/*/owner")
        owner.write_bytes(b"")
    assert boots == [1, 2, 3, 4]


def test_the_lock_dies_with_the_parent_though_a_forked_child_lives_on(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        parent = os.fork()
        if not parent:
            storage = open_nvme(NAMESPACE, options(tmp_path))
            put(storage, digests_of("page"), parents=[ROOT])
            if not os.fork():  # from here on the child has let go of the store
                os.write(writer, os.getpid().to_bytes(8, "little"))
            signal.pause()
    child = int.from_bytes(os.read(reader, 8), "little")
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        storage = open_nvme(NAMESPACE, options(tmp_path))
        assert storage.stats()["pages"] == 1, "the store of the dead parent is taken over"
        storage.close()
    finally:
        os.kill(child, signal.SIGKILL)
        os.close(reader)
        os.close(writer)


def test_a_store_that_is_read_does_not_count_as_unused(tmp_path: Path) -> None:
    owner = Worker(tmp_path)
    places = owner.ask("put", names("page", 2))
    owner.close()
    (file,) = tmp_path.glob("*/*/owner")
    os.utime(file, (1e9, 1e9))
    other = open_nvme(NAMESPACE, options(tmp_path))
    other.close()
    os.utime(file, (1e9, 1e9))
    holder = Worker(tmp_path)
    reader = open_nvme(NAMESPACE, options(tmp_path))
    locations = [bytes.fromhex(place) for place in places]
    target = Target(2)
    assert all(reader.get(digests_of(*names("page", 2)), target.pages, soon(), locations))
    assert file.stat().st_mtime > 1e9 + 1
    holder.close()
    reader.close()


def test_chains_of_entries_come_heads_first_after_a_restart(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path))
    chain = digests_of(*range(12))
    parents = chain_parents(chain)
    put(storage, chain[6:], parents=parents[6:])
    put(storage, chain[:6], parents=parents[:6])
    storage.close()
    storage = open_nvme(NAMESPACE, options(tmp_path))
    assert [entry.digest for entry in storage.entries()] == chain
    assert [entry.parent for entry in storage.entries()] == parents
    storage.close()
