"""Media that are full, gone, copied or not to be written."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import StorageUnavailable
from hicache_backends.nvme import NvmeOptions, NvmeStorage, open_nvme
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.storage import ROOT
from hicache_backends.testing.canaries import (
    NAMESPACE,
    Target,
    canary,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
)
from tests.conftest import need_program

PAGES = digests_of(*range(8))
MIB = 1 << 20


def open_on(*roots: Path, **options: Any) -> NvmeStorage:
    limits = {"capacity_bytes": 8 * MIB, "free_floor_bytes": 0, "segment_bytes": MIB // 4}
    return open_nvme(NAMESPACE, NvmeOptions(tuple(map(str, roots)), **{**limits, **options}))


def put_singly(storage: NvmeStorage, names: range) -> list[Outcome]:
    return [put(storage, digests_of(name), parents=[ROOT])[0] for name in names]


def _fill(ballast: Path) -> None:
    """Take every free block of a file system."""
    fd = os.open(ballast, os.O_WRONLY | os.O_CREAT)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, bytes(4096))
    os.close(fd)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of one MiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        [need_program("mount"), "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=False
    )
    if mounted.returncode:
        pytest.skip("this user cannot mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", disk], check=True)


def test_a_disk_smaller_than_the_capacity_evicts_instead_of_failing(small_disk: Path) -> None:
    storage = open_on(small_disk)
    outcomes = put_singly(storage, range(300))
    assert all(outcomes), [outcome for outcome in outcomes if not outcome]
    assert 32 <= storage.stats()["pages"] < 128  # type: ignore[operator]  # an int here
    there = get(storage, digests_of(*range(300)))
    assert sum(there) == storage.stats()["pages"]
    assert there[-1]
    storage.close()


def test_a_disk_that_others_filled_refuses_puts_serves_reads_and_recovers(small_disk: Path) -> None:
    storage = open_on(small_disk)
    assert all(put(storage, PAGES, parents=chain_parents(PAGES)))
    storage.close()
    ballast = small_disk / "ballast"
    _fill(ballast)
    storage = open_on(small_disk)
    assert get(storage, PAGES) == [True] * 8
    outcomes = put_singly(storage, range(100, 160))
    assert {o.reason for o in outcomes} <= {None, Reason.NO_SPACE}
    there = storage.contains(digests_of(*range(100, 160)))
    assert get(storage, digests_of(*range(100, 160))) == there
    ballast.unlink()
    assert put(storage, digests_of("after"), parents=[ROOT])[0].ok
    storage.close()


def test_the_free_space_floor_is_kept_when_another_fills_the_disk(small_disk: Path) -> None:
    floor = MIB // 2
    storage = open_on(small_disk, free_floor_bytes=floor)
    put_singly(storage, range(200))
    system = os.statvfs(small_disk)
    assert system.f_bavail * system.f_frsize >= floor
    assert storage.stats()["pages"]
    storage.close()


@pytest.fixture
def roots(tmp_path: Path) -> list[Path]:
    found = [tmp_path / "a", tmp_path / "b"]
    for root in found:
        root.mkdir()
    return found


def test_one_of_two_paths_may_be_missing_at_the_start(roots: list[Path]) -> None:
    storage = open_on(*roots)
    pages = digests_of(*range(64))
    assert all(put(storage, pages))
    storage.close()
    shutil.move(roots[1], roots[1].with_name("away"))
    storage = open_on(*roots, create=False)
    there = get(storage, pages)
    assert 0 < sum(there) < 64
    assert storage.contains(pages) == there
    assert all(put(storage, pages))
    assert get(storage, pages) == [True] * 64
    storage.close()


def test_one_of_two_paths_may_go_while_in_use(roots: list[Path]) -> None:
    storage = open_on(*roots)
    pages = digests_of(*range(64))
    assert all(put(storage, pages))
    shutil.rmtree(roots[1])
    for _ in range(3):
        there = get(storage, pages)
        put(storage, pages)
    assert sum(there) >= 16
    fresh = [*put_singly(storage, range(1000, 1200))]
    assert {outcome.reason for outcome in fresh} <= {None, Reason.IO_ERROR, Reason.NO_SPACE}
    assert fresh[-1].ok
    assert storage.close()


def test_no_path_at_all_is_unavailable_and_names_them(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="missing"):
        open_on(tmp_path / "missing", create=False)
    with pytest.raises(StorageUnavailable, match="deep"):
        open_on(tmp_path / "missing" / "deep")
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageUnavailable, match="file"):
        open_on(tmp_path / "file")


def test_a_copied_root_and_its_original_go_separate_ways(roots: list[Path]) -> None:
    storage = open_on(roots[0])
    places = [o.location for o in put(storage, PAGES, parents=chain_parents(PAGES))]
    storage.close()
    roots[1].rmdir()
    shutil.copytree(roots[0], roots[1])
    original, copy = open_on(roots[0]), open_on(roots[1])
    assert not {*original.media} & {*copy.media}
    assert get(original, PAGES) == get(copy, PAGES) == [True] * 8
    copy.remove(PAGES)
    put_singly(copy, range(100, 140))
    assert get(original, PAGES) == [True] * 8
    target = Target(8)
    outcomes = copy.get(PAGES, target.pages, soon(), places)
    assert all(target[i] == canary(p) for i, p in enumerate(PAGES) if outcomes[i].ok)
    assert original.close()
    assert copy.close()


def test_a_copied_store_is_another_store(roots: list[Path]) -> None:
    storage = open_on(roots[0])
    assert all(put(storage, PAGES, parents=chain_parents(PAGES)))
    storage.close()
    (store,) = [path.parent for path in roots[0].rglob("owner")]
    shutil.copytree(store, store.with_name("0" * 32))
    first, second = open_on(roots[0]), open_on(roots[0])
    assert get(first, PAGES) == get(second, PAGES) == [True] * 8
    first.remove(PAGES)
    put_singly(first, range(100, 140))
    assert get(second, PAGES) == [True] * 8
    assert {path.parent.name for path in roots[0].rglob("owner")}.isdisjoint({"0" * 32})
    assert first.close()
    assert second.close()


@contextlib.contextmanager
def _unprivileged() -> Iterator[None]:
    """As a user that may not write everywhere."""
    before = os.geteuid()
    if not before:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(before)


@pytest.mark.parametrize("mode", [0o000, 0o500, 0o555])
def test_a_path_that_may_not_be_written_is_unavailable_with_the_remedy(mode: int) -> None:
    with tempfile.TemporaryDirectory() as parent:  # pytest's own directories hide everything
        Path(parent).chmod(0o755)
        root = Path(parent, "root")
        root.mkdir()
        root.chmod(mode)
        with _unprivileged(), pytest.raises(StorageUnavailable, match="writable"):
            open_on(root)
        root.chmod(0o700)
