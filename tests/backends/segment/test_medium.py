"""A root: its capacity holds for everybody, dead stores go first, copies are noticed."""

from __future__ import annotations

import dataclasses
import itertools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, StorageUnavailable
from hicache_backends.nvme import NvmeOptions, NvmeStorage, open_nvme
from hicache_backends.outcomes import Reason
from hicache_backends.segment.local_medium import LocalMedium
from hicache_backends.segment.medium import Limits
from hicache_backends.segment.reclaim import segment_file_bytes
from hicache_backends.segment.segment import stored_bytes
from hicache_backends.storage import ROOT, PageEntry
from hicache_backends.testing.canaries import (
    NAMESPACE,
    PAGE_BYTES,
    Target,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
)
from tests.backends.segment.worker import Worker, options

OTHER = dataclasses.replace(NAMESPACE, model="another")


def names(word: str, count: int) -> list[str]:
    return [f"{word} {i}" for i in range(count)]


def fill(storage: NvmeStorage, pages: Sequence[bytes]) -> list[bool]:
    """Put pages one after another, each a chain of its own."""
    return [put(storage, [page], parents=[ROOT])[0].ok for page in pages]


def test_nearly_all_of_the_capacity_holds_pages(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=93, segment_pages=8))
    pages = digests_of(*range(200))
    assert all(fill(storage, pages))
    assert sum(storage.contains(pages)) == 93
    assert segment_file_bytes(str(tmp_path)) <= stored_bytes(93, PAGE_BYTES)
    storage.close()


def test_capacity_is_never_exceeded_by_several_processes(tmp_path: Path) -> None:
    workers = [Worker(tmp_path, pages=64) for _ in range(4)]
    for turn in range(12):
        for n, worker in enumerate(workers):
            worker.tell("put", names(f"{n} {turn}", 8))
        stored = [worker.answer() for worker in workers]
        assert all(map(all, stored)), "a process that has segments makes room in them"
        assert segment_file_bytes(str(tmp_path)) <= stored_bytes(64, PAGE_BYTES)
    for worker in workers:
        assert worker.ask("stats")["capacity_bytes"] == stored_bytes(64, PAGE_BYTES)
        worker.close()
    with LocalMedium(str(tmp_path)).locked(soon()) as ledger:
        assert ledger.used_bytes == segment_file_bytes(str(tmp_path))


def test_the_free_space_floor_is_kept(tmp_path: Path) -> None:
    system = os.statvfs(tmp_path)
    free = system.f_bavail * system.f_frsize
    storage = open_nvme(NAMESPACE, options(tmp_path, free_floor_bytes=free + (1 << 40)))
    outcomes = put(storage, digests_of("a", "b"))
    assert [outcome.reason for outcome in outcomes] == [Reason.NO_SPACE] * 2
    assert segment_file_bytes(str(tmp_path)) == 0
    storage.close()


def test_without_figures_the_file_system_decides_and_a_root_keeps_what_it_was_given(
    tmp_path: Path,
) -> None:
    system = os.statvfs(tmp_path)
    storage = open_nvme(NAMESPACE, NvmeOptions((str(tmp_path),)))
    capacity = storage.stats()["capacity_bytes"]
    assert isinstance(capacity, int)
    assert 0 < capacity < system.f_bavail * system.f_frsize
    storage.close()
    open_nvme(NAMESPACE, options(tmp_path, pages=10)).close()
    storage = open_nvme(NAMESPACE, NvmeOptions((str(tmp_path),)))
    assert storage.stats()["capacity_bytes"] == stored_bytes(10, PAGE_BYTES)
    storage.close()


def test_stores_that_nobody_has_open_give_way_other_namespaces_first(tmp_path: Path) -> None:
    other, own, live = (
        open_nvme(OTHER, options(tmp_path, pages=48)),
        open_nvme(NAMESPACE, options(tmp_path, pages=48)),
        open_nvme(NAMESPACE, options(tmp_path, pages=48)),
    )
    for word, storage in (("other", other), ("own", own), ("live", live)):
        assert all(fill(storage, digests_of(*names(word, 16))))
    other.close()
    own.close()
    again = open_nvme(NAMESPACE, options(tmp_path, pages=48))
    assert all(again.contains(digests_of(*names("own", 16))))
    third = open_nvme(NAMESPACE, options(tmp_path, pages=48))
    assert all(fill(third, digests_of(*names("new", 16))))
    assert third.stats()["reclaimed_segments"] == 2
    assert not (tmp_path / OTHER.fingerprint.hex()).exists(), "nothing is left of it"
    assert get(again, digests_of(*names("own", 16))) == [True] * 16
    again.close()
    assert all(fill(third, digests_of(*names("newer", 16))))
    assert third.stats()["reclaimed_segments"] == 4, "now those of its own namespace"
    assert get(live, digests_of(*names("live", 16))) == [True] * 16
    assert segment_file_bytes(str(tmp_path)) <= stored_bytes(48, PAGE_BYTES)
    for storage in (live, third):
        storage.close()


def test_of_dead_stores_the_one_unused_for_longest_goes_first(tmp_path: Path) -> None:
    spaces = [dataclasses.replace(NAMESPACE, model=f"old {i}") for i in range(3)]
    for age, space in enumerate(spaces):
        storage = open_nvme(space, options(tmp_path, pages=32))
        assert all(fill(storage, digests_of(*names("x", 8))))
        storage.close()
        for file in (tmp_path / space.fingerprint.hex()).rglob("*"):
            os.utime(file, (1e9 + (age - 1) % 3, 1e9 + (age - 1) % 3))
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=32))
    for turn, gone in enumerate(([], [1], [1, 2], [0, 1, 2])):
        assert all(fill(storage, digests_of(*names(f"new {turn}", 8))))
        left = [(tmp_path / space.fingerprint.hex()).exists() for space in spaces]
        assert left == [i not in gone for i in range(3)]
    storage.close()


def test_a_lower_capacity_is_reached_while_pages_are_put(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=64))
    fill(storage, digests_of(*range(64)))
    storage.close()
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=40))
    assert get(storage, digests_of(*range(64))) == [True] * 64
    _put_until(storage, lambda: segment_file_bytes(str(tmp_path)) <= stored_bytes(40, PAGE_BYTES))
    assert storage.stats()["segments_given_up"] == 3
    storage.close()


def test_a_store_that_comes_late_gets_a_share_of_a_full_root(tmp_path: Path) -> None:
    first = open_nvme(NAMESPACE, options(tmp_path, pages=64))
    assert all(fill(first, digests_of(*range(64))))
    keeper = Gone()
    first.set_keeper(keeper)
    late = open_nvme(OTHER, options(tmp_path, pages=64))
    page = digests_of("late")
    assert put(late, page)[0].reason is Reason.NO_SPACE
    while not put(late, page)[0].ok:
        _put_until(first, lambda: int(first.stats()["segments_given_up"]) > 0)
        time.sleep(0.02)
    assert len(keeper.told) == 8, "the registry learns what went with the segment"
    assert segment_file_bytes(str(tmp_path)) <= stored_bytes(64, PAGE_BYTES)
    there = [page for page in digests_of(*range(64)) if first.contains([page])[0]]
    assert get(first, there) == [True] * len(there)
    for storage in (first, late):
        storage.close()


def test_a_store_that_gives_up_a_segment_amid_a_batch_goes_on(tmp_path: Path) -> None:
    first = open_nvme(NAMESPACE, options(tmp_path, pages=64))
    assert all(fill(first, digests_of(*range(64))))
    late = open_nvme(NAMESPACE, options(tmp_path, pages=64))
    assert put(late, digests_of("late"))[0].reason is Reason.NO_SPACE
    first.remove(digests_of(*range(4)))  # slots of the segment that goes are free
    for root in first._state.volumes:
        root._refused_until_s = 0.0  # a refusal is believed for a while
    for turn in range(4):
        assert all(put(first, digests_of(*names(f"batch {turn}", 24)), parents=[ROOT] * 24))
    assert first.stats()["segments_given_up"] == 1
    assert first.stats()["failed_roots"] == ""
    for storage in (first, late):
        storage.close()


class Gone:
    """A keeper that keeps nothing and notes what goes."""

    def __init__(self) -> None:
        self.told: list[PageEntry] = []

    def may_evict(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
    ) -> list[bool]:
        return [True] * len(entries)

    def gone(self, entries: Sequence[PageEntry]) -> None:
        self.told += entries


def _put_until(storage: NvmeStorage, done: Callable[[], bool]) -> None:
    """Put new pages, one after another, for at most half a minute."""
    end = time.monotonic() + 30
    for n in itertools.count():
        if done():
            return
        assert time.monotonic() < end, storage.stats()
        assert put(storage, digests_of(f"until {n}"), parents=[ROOT])[0].ok
        time.sleep(0.01)


def test_a_copied_root_gets_a_uuid_and_stores_of_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    first, copy = tmp_path / "first", tmp_path / "copy"
    storage = open_nvme(NAMESPACE, options(first))
    pages = digests_of(*range(8))
    put(storage, pages, parents=chain_parents(pages))
    shutil.copytree(first, copy)
    twin = open_nvme(NAMESPACE, options(copy))
    assert get(twin, pages) == [True] * 8
    assert not {*twin.media} & {*storage.media}
    assert not {*twin.stores} & {*storage.stores}
    assert "copy" in caplog.text
    uuids = twin.media, twin.stores
    twin.close()
    twin = open_nvme(NAMESPACE, options(copy))
    assert (twin.media, twin.stores) == uuids, "it is no copy any more"
    for one in (storage, twin):
        one.close()


def test_a_copied_store_directory_becomes_another_store(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path))
    pages = digests_of(*range(8))
    places = [o.location for o in put(storage, pages, parents=chain_parents(pages))]
    (directory,) = (tmp_path / NAMESPACE.fingerprint.hex()).glob("?" * 32)
    shutil.copytree(directory, directory.with_name("0123456789abcdef" * 2))
    twin = open_nvme(NAMESPACE, options(tmp_path))
    assert twin.stores != storage.stores
    assert bytes.fromhex("0123456789abcdef" * 2) not in dict(twin.stores)
    assert get(twin, pages) == [True] * 8
    twin.remove(pages)
    assert get(storage, pages) == [True] * 8
    target = Target(8)
    assert all(twin.get(pages, target.pages, soon(), places))
    for one in (storage, twin):
        one.close()


def test_a_torn_medium_file_is_made_anew_and_no_page_is_lost(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path))
    pages = digests_of(*range(8))
    put(storage, pages)
    stores = storage.stores
    storage.close()
    (tmp_path / ".medium").write_bytes(b"HICACHE\0" + bytes(20))
    storage = open_nvme(NAMESPACE, options(tmp_path))
    assert get(storage, pages) == [True] * 8
    assert storage.stores[0][0] == stores[0][0]
    storage.close()


@pytest.mark.parametrize("missing", ["a", "a/b"])
def test_a_root_whose_parent_is_missing_is_refused(tmp_path: Path, missing: str) -> None:
    with pytest.raises(StorageUnavailable, match="nowhere"):
        open_nvme(NAMESPACE, options(tmp_path / "nowhere" / missing))


def test_a_root_is_made_unless_that_is_not_wanted(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="fresh"):
        open_nvme(NAMESPACE, options(tmp_path / "fresh", create=False))
    open_nvme(NAMESPACE, options(tmp_path / "fresh")).close()
    assert (tmp_path / "fresh" / ".medium").exists()


def test_a_root_that_is_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnavailable, match="file"):
        open_nvme(NAMESPACE, options(tmp_path / "file"))


@pytest.mark.parametrize(
    ("wrong", "word"),
    [
        ({"io_mode": "fast"}, "io_mode"),
        ({"zero_copy": "yes"}, "zero_copy"),
        ({"io_engine": "uring"}, "io_engine"),
        ({"capacity_bytes": 0}, "capacity_bytes"),
        ({"free_floor_bytes": -1}, "free_floor_bytes"),
        ({"segment_bytes": 0}, "segment_bytes"),
        ({"max_transfer_bytes": 512}, "max_transfer_bytes"),
    ],
)
def test_a_wrong_option_is_named(tmp_path: Path, wrong: dict[str, Any], word: str) -> None:
    with pytest.raises(ConfigError, match=word):
        open_nvme(NAMESPACE, options(tmp_path, **wrong))


def test_paths_are_given_once_each(tmp_path: Path) -> None:
    for paths in ((), ("",), (str(tmp_path), str(tmp_path))):
        with pytest.raises(ConfigError, match="paths"):
            open_nvme(NAMESPACE, NvmeOptions(paths))


def test_a_root_that_stays_locked_is_an_error_at_the_deadline(tmp_path: Path) -> None:
    medium = LocalMedium.open(str(tmp_path), Limits(1 << 20, 0), create=True, deadline=soon())
    with medium.locked(soon()):
        with pytest.raises(TimeoutError), medium.locked(Deadline.after_ms(30)):
            pass
        storage = None
    storage = open_nvme(NAMESPACE, options(tmp_path))
    with medium.locked(soon()):
        outcomes = storage.put(digests_of("a"), Target(1).pages, [ROOT], Deadline.after_ms(100))
    assert outcomes[0].reason in (Reason.NO_SPACE, Reason.TIMEOUT)
    storage.close()


def test_figures_are_told_while_the_drive_hangs(tmp_path: Path) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=16))
    assert all(put(storage, digests_of("a")))
    told = storage.stats()
    assert told["capacity_bytes"] == stored_bytes(16, PAGE_BYTES)
    assert told["used_bytes"] == segment_file_bytes(str(tmp_path))
    record = tmp_path / ".medium"
    record.rename(tmp_path / "aside")
    record.symlink_to("/dev/full")  # whoever reads here now would be told nothing
    assert storage.stats() == told
    record.unlink()
    (tmp_path / "aside").rename(record)
    storage.close()
