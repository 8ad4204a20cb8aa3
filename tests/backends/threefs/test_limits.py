"""A cluster that is full, read only, damaged or strewn with other things."""

from __future__ import annotations

import contextlib
import errno
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import IdentityMismatch, StorageUnavailable
from hicache_backends.outcomes import Reason
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put, read
from hicache_backends.threefs.backend import ThreeFsStorage, open_threefs
from tests.backends.threefs.test_death import wait_for
from tests.backends.threefs.worker import SLOT, ThreeFsWorker, options
from tests.threefs.stand_in import ThreeFs


def opened(fs: ThreeFs, **more: Any) -> contextlib.closing[ThreeFsStorage]:
    return contextlib.closing(
        open_threefs(NAMESPACE, options(fs.mount / "kv", **more), shared=True)
    )


def segment_bytes(fs: ThreeFs) -> int:
    """What the sizes of all data files come to."""
    return sum(path.stat().st_size for path in (fs.backing / "kv").glob("*/*/seg-*.data"))


@pytest.mark.parametrize("engine", ["usrbio", "fuse"])
def test_a_full_cluster_refuses_pages_serves_what_it_has_and_recovers(
    fs: ThreeFs, engine: str
) -> None:
    with opened(fs, io_engine=engine) as storage:
        old, new = digests_of(*range(16)), digests_of("a", "b")
        assert all(put(storage, old))
        fs.set(no_space=1)
        for _ in range(3):
            assert {outcome.reason for outcome in put(storage, new)} == {Reason.NO_SPACE}
            assert get(storage, old) == [True] * 16
        fs.reset()
        wait_for(lambda: all(put(storage, new)), "room, once there is some")
        assert get(storage, [*old, *new]) == [True] * 18
        assert storage.stats()["failed_roots"] == ""


@pytest.mark.parametrize("fault", ["short_share", "fail_share"])
def test_writes_that_fail_in_part_cost_no_slot(fs: ThreeFs, fault: str) -> None:
    """3FS has no bad sectors: what failed works the next time."""
    with opened(fs, pages=16, segment_pages=16) as storage:
        pages = digests_of(*range(16))
        assert all(put(storage, pages))
        fs.set(only=2, seed=5, fail_errno=errno.EIO, **{fault: 0.1})
        for page in digests_of(*range(100, 300)):
            put(storage, [page])
        assert storage.stats()["failed_roots"] == ""
        fs.reset()
        fresh = digests_of(*(f"fresh {i}" for i in range(16)))
        for page in fresh:
            assert put(storage, [page])[0].ok
        assert get(storage, fresh) == [True] * 16, "slots were lost"


def test_two_hosts_that_grow_at_once_stay_within_the_capacity(
    hosts: tuple[ThreeFs, ThreeFs],
) -> None:
    pages = 128
    with opened(hosts[0], pages=pages) as a, opened(hosts[1], pages=pages) as b:
        start = threading.Barrier(2)

        def fill(storage: ThreeFsStorage, word: str) -> None:
            start.wait(10)
            for turn in range(40):
                put(storage, digests_of(*(f"{word} {turn} {i}" for i in range(4))))
                moving = 8 * 8192  # a segment that one gives up and the other makes, seen twice
                assert segment_bytes(hosts[0]) <= pages * 8192 + moving

        threads = [threading.Thread(target=fill, args=each) for each in ((a, "a"), (b, "b"))]
        failures: list[Any] = []
        threading.excepthook, before = failures.append, threading.excepthook
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        finally:
            threading.excepthook = before
        assert not failures
        assert segment_bytes(hosts[0]) <= pages * 8192
        assert segment_bytes(hosts[0]) >= pages * 8192 // 2, "room was left to nobody"
        assert min(int(a.stats()["pages"]), int(b.stats()["pages"])) >= 8


def test_processes_that_grow_at_once_stay_within_the_capacity(fs: ThreeFs) -> None:
    workers = [ThreeFsWorker(fs.mount / "kv", wait=False, pages=128) for _ in range(4)]
    for worker in workers:
        worker.ready()
    for turn in range(12):
        for n, worker in enumerate(workers):
            worker.tell("put", [f"{n} {turn} {i}" for i in range(8)])
        for worker in workers:
            worker.answer()
        assert segment_bytes(fs) <= 128 * 8192
    for worker in workers:
        worker.close()


def test_a_mount_that_becomes_read_only_serves_what_it_has(fs: ThreeFs) -> None:
    with opened(fs) as storage:
        old = digests_of(*range(16))
        assert all(put(storage, old))
        fs.set(read_only=1)
        outcomes = put(storage, digests_of("a"))
        assert outcomes[0].reason in (Reason.IO_ERROR, Reason.NO_SPACE)
        assert get(storage, old) == [True] * 16 or storage.stats()["failed_roots"]
        fs.reset()
        storage._state.volumes[0]._probe_s = 0.0  # a minute passes
        wait_for(lambda: all(put(storage, digests_of("a"))), "the mount, writable again")
        assert get(storage, old).count(True) >= 15  # the new page may have taken a slot


def test_a_read_only_mount_is_refused_with_the_reason(fs: ThreeFs) -> None:
    (fs.mount / "kv").mkdir()
    fs.set(read_only=1)
    with pytest.raises(StorageUnavailable, match="not writable"):
        opened(fs)


@pytest.mark.parametrize("keep", [0, 64, 100, 4096])
def test_an_index_that_reads_short_ends_there(fs: ThreeFs, keep: int) -> None:
    pages = digests_of(*range(64))
    with opened(fs, segment_pages=128) as storage:
        assert all(put(storage, pages))
    (index,) = (fs.backing / "kv").glob("*/*/seg-*.index")
    os.truncate(index, keep)
    with opened(fs) as storage:
        found = storage.contains(pages)
        assert sum(found) == keep // 64
        assert get(storage, pages) == found
        assert all(put(storage, pages))
        assert get(storage, pages) == [True] * 64


def test_an_index_that_cannot_be_read_is_not_taken_for_an_empty_one(fs: ThreeFs) -> None:
    with opened(fs, segment_pages=64) as storage:
        assert all(put(storage, digests_of(*range(64))))
        path, filing = storage._state.volumes[0].store.path, storage._state.filing
        fs.set(only=1, fail_share=0.5, fail_errno=errno.EREMOTEIO, seed=3)
        found = []
        for _ in range(40):
            with contextlib.suppress(OSError):
                found.append(len(filing.read(path, 1, own=False).slots))
        assert {*found} == {64}
        assert len(found) > 20, "it is not tried again"
        assert len(found) < 40, "nothing failed"
        fs.reset()


def test_a_data_file_that_ends_early_costs_the_pages_beyond(fs: ThreeFs) -> None:
    pages = digests_of(*range(16))
    with opened(fs, segment_pages=16) as storage:
        assert all(put(storage, pages))
    (data,) = (fs.backing / "kv").glob("*/*/seg-*.data")
    os.truncate(data, 5 * 8192 + 100)
    with opened(fs) as storage:
        assert get(storage, pages).count(True) == 5
        assert all(put(storage, pages))
        assert get(storage, pages) == [True] * 16


@pytest.mark.parametrize("damage", [b"", b"\xff" * 4096, bytes(4096)])
def test_damaged_limits_are_written_anew(fs: ThreeFs, damage: bytes) -> None:
    pages = digests_of(*range(16))
    with opened(fs, pages=64) as storage:
        medium = storage.media
        assert all(put(storage, pages))
    (fs.mount / "kv" / ".medium").write_bytes(damage)
    with opened(fs, pages=64) as storage:
        assert storage.media == medium, "the medium is another now, and no location leads there"
        assert get(storage, pages) == [True] * 16
    with opened(fs, capacity_bytes=None) as storage:
        assert storage.stats()["capacity_bytes"] == 64 * SLOT


def test_another_clusters_directory_is_refused(fs: ThreeFs) -> None:
    with opened(fs, cluster_id="one"):
        pass
    with pytest.raises(IdentityMismatch, match="'one'"):
        opened(fs, cluster_id="two")


def _file(path: Path) -> None:
    path.write_bytes(b"garbage")


def _link(path: Path) -> None:
    path.symlink_to("/etc")


@pytest.mark.parametrize("make", [_file, Path.mkdir, _link, os.mkfifo], ids=lambda f: f.__name__)
def test_what_is_no_store_is_left_alone(fs: ThreeFs, make: Callable[[Path], object]) -> None:
    pages = digests_of(*range(16))
    with opened(fs, pages=64) as storage:
        assert all(put(storage, pages))
        namespace = Path(storage._state.volumes[0].store.path).parent
    root = fs.backing / "kv"
    store = next(path for path in (root / namespace.name).iterdir() if path.is_dir())
    strewn = [
        root / "lost+found",
        root / ("0" * 64),
        root / namespace.name / "notes",
        root / namespace.name / ("f" * 32),
        store / "seg-000099.data",
        store / "seg-000099.index",
        store / "adopter-x",
        store / "adopter-000001",
    ]
    for path in strewn:
        make(path)
    with opened(fs, pages=64) as storage:
        found = get(storage, pages)
        assert found in ([True] * 16, [False] * 16)  # the latter if the adopter cannot be read
        for turn in range(32):
            assert all(read(storage, put_some(storage, turn)))
    assert all(os.path.lexists(path) for path in strewn[:3])


def put_some(storage: ThreeFsStorage, turn: int) -> list[bytes]:
    pages = digests_of(*(f"{turn} {i}" for i in range(4)))
    assert all(put(storage, pages))
    return pages
