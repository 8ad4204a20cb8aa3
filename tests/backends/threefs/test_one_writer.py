"""A store has one writer for life, and stores that were left behind have one adopter at a time."""

from __future__ import annotations

import contextlib
import os
import random
import threading
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import pytest

from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
from hicache_backends.threefs import adoption, directory
from hicache_backends.threefs.backend import ThreeFsStorage, open_threefs
from hicache_backends.threefs.tenure import LEASE_S, OWNER_BYTES, Tenure
from tests.backends.threefs.test_death import wait_for
from tests.backends.threefs.worker import ThreeFsWorker, options
from tests.threefs.stand_in import ThreeFs


@pytest.fixture
def root(fs: ThreeFs) -> Path:
    return fs.mount / "kv"


def opened(root: Path, **more: int) -> ThreeFsStorage:
    return open_threefs(NAMESPACE, options(root, **more), shared=True)


def names(word: object, count: int) -> list[str]:
    return [f"{word} {i}" for i in range(count)]


def test_processes_that_are_given_one_name_write_two_stores(root: Path) -> None:
    name = uuid.uuid4().hex
    workers = [ThreeFsWorker(root, wait=False, uuid=name) for _ in range(4)]
    stores = [worker.ready() for worker in workers]
    assert len({*stores}) == 4
    assert name in stores
    for n, worker in enumerate(workers):
        assert all(worker.ask("put", names(n, 24)))
    for n, worker in enumerate(workers):
        assert worker.ask("get", names(n, 24)) == [True] * 24
        worker.close()


def test_threads_that_are_given_one_name_write_two_stores(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, given = uuid.uuid4(), threading.local()

    def one_for_each_thread() -> uuid.UUID:
        if hasattr(given, "had"):
            return uuid.uuid4()
        given.had = True
        return name

    monkeypatch.setattr(directory, "uuid", SimpleNamespace(uuid4=one_for_each_thread))
    stores: list[ThreeFsStorage] = []
    threads = [threading.Thread(target=lambda: stores.append(opened(root))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    uuids = {store.stores[0][0] for store in stores}
    assert len(uuids) == 4
    assert name.bytes in uuids
    for store in stores:
        store.close()


def test_a_process_that_is_started_again_has_a_new_store_and_its_old_pages(root: Path) -> None:
    worker = ThreeFsWorker(root, wait=False)
    first = worker.ready()
    assert all(worker.ask("put", names("a", 24)))
    worker.kill()
    again = ThreeFsWorker(root, wait=False)
    second = again.ready()
    assert second != first
    assert again.ask("get", names("a", 24)) == [True] * 24
    files = _contents(root, first, ".data")
    assert all(again.ask("put", names("b", 24)))
    assert _contents(root, first, ".data") == files, "the old store was written to"
    again.close()
    third = opened(root)
    everything = digests_of(*names("a", 24), *names("b", 24))
    assert get(third, everything) == [True] * 48
    third.close()


def _contents(root: Path, store: str, suffix: str) -> dict[str, bytes]:
    directory = root / NAMESPACE.fingerprint.hex() / store
    return {p.name: p.read_bytes() for p in sorted(directory.glob(f"seg-*{suffix}"))}


def test_of_processes_that_start_at_once_one_takes_a_store_over(root: Path) -> None:
    for turn in range(3):
        left = ThreeFsWorker(root)
        assert all(left.ask("put", names(turn, 16)))
        left.kill()
        workers = [ThreeFsWorker(root, wait=False) for _ in range(4)]
        for worker in workers:
            worker.ready()
        owners = [sum(worker.ask("contains", names(turn, 16))) for worker in workers]
        pages = [worker.ask("stats")["pages"] for worker in workers]
        assert sum(pages) == 16 * (turn + 1), "a page has two owners, or none"
        assert 16 in owners
        for worker in workers:
            worker.kill()


def test_an_adopter_that_dies_is_followed_by_another(root: Path) -> None:
    left = ThreeFsWorker(root)
    assert all(left.ask("put", names("a", 16)))
    left.kill()
    for _ in range(3):
        adopter = ThreeFsWorker(root)
        assert adopter.ask("stats")["pages"] == 16
        beside = ThreeFsWorker(root)
        assert beside.ask("stats")["pages"] == 0
        beside.close()
        adopter.kill()
    last = opened(root)
    assert last.stats()["pages"] == 16
    assert get(last, digests_of(*names("a", 16))) == [True] * 16
    last.close()


@pytest.mark.parametrize("written", [0, 7])
def test_an_adopter_that_died_before_it_said_who_it_is_keeps_a_store_for_one_lease(
    root: Path, written: int
) -> None:
    left = ThreeFsWorker(root, wait=False)
    directory = root / NAMESPACE.fingerprint.hex() / left.ready()
    assert all(left.ask("put", names("a", 16)))
    left.kill()
    half = directory / "adopter-000001"
    half.write_bytes(bytes(written))
    with contextlib.closing(opened(root)) as one:
        assert one.stats()["pages"] == 0
    old_s = time.time() - LEASE_S - 60
    os.utime(half, (old_s, old_s))
    with contextlib.closing(opened(root)) as one:
        assert one.stats()["pages"] == 16
    assert not half.exists()


def test_two_adopters_that_saw_different_numbers_are_one(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One looked long ago, when there was no adopter; since then one came, died and was
    followed."""
    store = root / "store"
    store.mkdir(parents=True)
    (store / "adopter-000002").write_bytes(bytes(16))
    looks = iter([[], [1, 2]])
    monkeypatch.setattr(adoption, "_numbers", lambda path: next(looks))
    assert not adoption.claim(str(store), bytes(range(16)))
    assert [path.name for path in store.iterdir()] == ["adopter-000002"]


@pytest.mark.parametrize("content", [b"", b"\xff" * OWNER_BYTES, bytes(OWNER_BYTES)])
def test_a_store_whose_owner_file_is_damaged_is_nobodys_after_a_lease(
    root: Path, content: bytes
) -> None:
    left = ThreeFsWorker(root, wait=False)
    directory = root / NAMESPACE.fingerprint.hex() / left.ready()
    assert all(left.ask("put", names("a", 16)))
    left.kill()
    owner = directory / "owner"
    owner.write_bytes(content)
    with contextlib.closing(opened(root)) as one:  # it may be about to be signed
        assert (one.stats()["pages"], one.stats()["foreign_pages"]) == (0, 0)
    old_s = time.time() - LEASE_S - 60
    os.utime(owner, (old_s, old_s))
    with contextlib.closing(opened(root)) as one:
        assert get(one, digests_of(*names("a", 16))) == [True] * 16


def test_a_lease_that_ran_out_is_over_and_one_that_runs_is_not(root: Path) -> None:
    with contextlib.closing(opened(root)) as one:
        path = one._state.volumes[0].store.path
        tenure = Tenure.read(path)
        assert tenure
        assert not tenure.is_over
        assert not tenure.here.is_gone
    tenure = Tenure.read(path)
    assert tenure
    assert tenure.is_over


def kill_at_a_random_time(root: Path, chance: random.Random, turn: int) -> None:
    """A process that opens, adopts, grows and evicts, ended at any moment."""
    worker = ThreeFsWorker(root, wait=False, pages=64)
    if chance.random() < 0.6:
        worker.ready()
        worker.tell("put", names(turn, 48))
        time.sleep(chance.random() * 0.05)
    else:
        time.sleep(0.3 + chance.random() * 0.6)
    worker.kill()


@pytest.mark.parametrize(
    "kills", [6, pytest.param(60, marks=[pytest.mark.slow, pytest.mark.timeout(900)])]
)
def test_whatever_a_kill_leaves_the_next_one_copes_with(
    fs: ThreeFs, root: Path, kills: int
) -> None:
    chance = random.Random(kills)  # noqa: S311 - a choice of moments
    for turn in range(kills):
        kill_at_a_random_time(root, chance, turn)
        with contextlib.closing(opened(root, pages=64)) as storage:
            pages = digests_of(*names(turn, 48))
            assert get(storage, pages) == storage.contains(pages), "a record without its page"
            new = digests_of(*names(f"after {turn}", 16))
            for start in range(0, 16, 4):
                assert all(put(storage, new[start : start + 4]))
            assert get(storage, new) == [True] * 16
    with contextlib.closing(opened(root, pages=64)) as storage:
        for turn in range(32):
            assert all(put(storage, digests_of(*names(f"last {turn}", 4))))
        wait_for(lambda: _stores(root) <= 2, "the end of stores that are empty")
    big = sum(p.stat().st_blocks * 512 for p in (fs.backing / "kv").glob("*/*/seg-*"))
    assert big < 2 * 64 * 8256


def _stores(root: Path) -> int:
    """Those that were signed once: who died sooner may still be about to."""
    return sum(path.read_bytes() != b"" for path in root.glob("*/*/owner"))
