"""Files that were changed, cut, exchanged or taken away: never wrong bytes, and a way back."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_backends.errors import IdentityMismatch, StorageError
from hicache_backends.native_calls import crc32c
from hicache_backends.storage import ROOT, PageStorage
from hicache_backends.testing.canaries import NAMESPACE, chain_parents, digests_of, get, put
from hicache_backends.testing.concurrency import run_together
from tests.backends.nvme_medium import NvmeMedium, flip_bit, stored_pages
from tests.faults.small_store import CAPACITY, CHAINS, check_whole, open_small

PAGES = [*CHAINS[0], *CHAINS[1]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A closed store that holds two chains."""
    storage = open_small(tmp_path, "auto")
    for chain in CHAINS[:2]:
        assert all(put(storage, chain, parents=chain_parents(chain)))
    assert storage.close()
    return tmp_path


def files_of(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("*") if path.is_file() and path.stat().st_size)


def serve_and_repair(root: Path) -> list[bool]:
    """Which pages were served, all right ones; afterwards all are there again. None where a
    damaged namespace file is refused."""
    try:
        storage = open_small(root, "auto")
    except IdentityMismatch:
        return []
    served = get(storage, PAGES)
    for chain in CHAINS[:2]:
        assert all(put(storage, chain, parents=chain_parents(chain)))
    assert get(storage, PAGES) == [True] * len(PAGES)
    assert storage.close()
    return served


def test_one_flipped_bit_anywhere_costs_one_page_at_most(root: Path) -> None:
    chance = random.Random(5)  # noqa: S311 - not cryptography
    lost = {".data": 0, ".index": 0}
    for path in files_of(root):
        bits = path.stat().st_size * 8
        for bit in chance.sample(range(bits), min(bits, 40)):
            flip_bit(path, bit)
            served = serve_and_repair(root)
            if path.suffix not in lost:
                if path.exists():
                    flip_bit(path, bit)  # back: nothing rewrites these
                continue
            assert served.count(False) <= 1, f"{path.name} bit {bit}"
            lost[path.suffix] += served.count(False)
    assert min(lost.values()) > 10, lost


@pytest.mark.parametrize("kind", [".data", ".index", "owner", "namespace.msgpack", ".medium"])
@pytest.mark.parametrize("part", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_never_served_beyond_its_end(
    root: Path, kind: str, part: float
) -> None:
    for path in [path for path in files_of(root) if path.name.endswith(kind)]:
        whole = path.read_bytes()
        os.truncate(path, int(len(whole) * part))
        if serve_and_repair(root) == []:
            path.write_bytes(whole)
    assert all(serve_and_repair(root))
    storage = open_small(root, "auto")
    check_whole(storage)
    storage.close()


def test_a_longer_file_does_no_harm(root: Path) -> None:
    for path in files_of(root):
        if path.suffix in (".data", ".index"):
            with path.open("ab") as file:
                file.write(os.urandom(10_000))
    assert all(serve_and_repair(root))


def test_exchanged_data_files_give_misses_not_each_others_pages(root: Path) -> None:
    first, second = [path for path in files_of(root) if path.suffix == ".data"]
    third = first.with_name("third")
    first.rename(third)
    second.rename(first)
    third.rename(second)
    assert not any(serve_and_repair(root))


def test_exchanged_index_files_give_misses_not_each_others_pages(root: Path) -> None:
    first, second = [path for path in files_of(root) if path.suffix == ".index"]
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    serve_and_repair(root)


def test_a_missing_file_costs_its_pages_only(root: Path) -> None:
    for kind in (".data", ".index"):
        next(path for path in files_of(root) if path.suffix == kind).unlink()
        assert serve_and_repair(root).count(True) >= 8
    storage = open_small(root, "auto")
    check_whole(storage)
    storage.close()


def test_an_index_older_than_its_data_serves_no_reused_slot(root: Path) -> None:
    old = {path: path.read_bytes() for path in files_of(root) if path.suffix == ".index"}
    storage = open_small(root, "auto")
    newer = digests_of(*(f"newer {i}" for i in range(CAPACITY)))
    for page in newer:
        assert put(storage, [page], parents=[ROOT])[0].ok
    assert not any(storage.contains(PAGES))
    storage.close()
    for path, content in old.items():
        path.write_bytes(content)
    assert not any(serve_and_repair(root))


def test_a_record_of_data_never_written_is_a_miss(root: Path) -> None:
    """As after a crash that kept the index and lost the data: the slot reads as zeros."""
    ghost = digests_of("ghost")[0]
    page = next(stored_pages(root, NAMESPACE))
    raw = bytearray(page.index.read_bytes())
    record = raw[page.record_at : page.record_at + 64]
    record[:16] = ghost
    record[56:60] = crc32c(bytes(record[:56])).to_bytes(4, "little")
    raw[page.record_at : page.record_at + 64] = record
    page.index.write_bytes(raw)
    with page.data.open("r+b") as file:
        file.seek(page.at)
        file.write(bytes(page.length))
    storage = open_small(root, "auto")
    assert storage.contains([ghost]) == [True]
    assert get(storage, [ghost]) == [False]
    assert storage.contains([ghost]) == [False]
    storage.close()


def test_garbage_among_the_files_is_passed_over(root: Path) -> None:
    store = next(path.parent for path in files_of(root) if path.suffix == ".data")
    for directory in (root, store.parent, store):
        (directory / "lost+found").mkdir()
        (directory / "notes.txt").write_text("not ours")
        (directory / "seg-abc.index").write_bytes(os.urandom(640))
        (directory / ("0" * 32)).mkdir()
        (directory / ("f" * 64)).write_bytes(b"a file where a directory might be")
    assert all(serve_and_repair(root))


def test_a_namespace_file_of_another_identity_is_refused(root: Path) -> None:
    (file,) = root.glob("*/namespace.msgpack")
    file.write_bytes(file.read_bytes().replace(b"canary", b"parrot"))
    with pytest.raises(IdentityMismatch, match="parrot"):
        open_small(root, "auto")


@contextlib.contextmanager
def vandal(root: Path, pause_s: float) -> Iterator[None]:
    """Someone who removes everything below the root again and again."""
    stop = threading.Event()

    def ruin() -> None:
        while not stop.wait(pause_s):
            for path in root.iterdir():
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)

    thread = threading.Thread(target=ruin)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def test_a_namespace_removed_under_load_gives_misses_and_comes_back(tmp_path: Path) -> None:
    medium = NvmeMedium(tmp_path)
    storage = medium.open(NAMESPACE, capacity_pages=64)
    pages = digests_of(*range(96))

    def write(chance: random.Random) -> None:
        chosen = chance.sample(pages, 8)
        assert len(put(storage, chosen, parents=[ROOT] * 8)) == 8

    def read(chance: random.Random) -> None:
        get(storage, chance.sample(pages, 8))

    with vandal(medium.roots[0], 0.25):
        run_together([write, write, read, read], 2.0)
    fresh = _pages_that_reach(medium, storage, within_s=40)
    assert get(storage, fresh) == [True] * 8
    storage.close()
    storage = medium.open(NAMESPACE, capacity_pages=64)
    assert get(storage, fresh) == [True] * 8
    storage.close()


def _pages_that_reach(medium: NvmeMedium, storage: PageStorage, *, within_s: float) -> list[bytes]:
    """Put pages until some are found on the medium itself, not in files that nobody sees."""
    end = time.monotonic() + within_s
    attempt = 0
    while True:
        fresh = digests_of(*(f"{attempt} {i}" for i in range(8)))
        if all(put(storage, fresh, parents=[ROOT] * 8)) and {*fresh} <= medium.stored(NAMESPACE):
            return fresh
        assert time.monotonic() < end, f"it does not come back: {storage.stats()}"
        time.sleep(0.05)
        attempt += 1


def test_a_root_that_is_gone_is_an_error_of_the_tree_and_not_a_crash(tmp_path: Path) -> None:
    medium = NvmeMedium(tmp_path)
    storage = medium.open(NAMESPACE)
    put(storage, PAGES)
    shutil.rmtree(medium.roots[0])
    with contextlib.suppress(StorageError):
        get(storage, PAGES)
    with contextlib.suppress(StorageError):
        put(storage, digests_of("more"))
    assert storage.close()
