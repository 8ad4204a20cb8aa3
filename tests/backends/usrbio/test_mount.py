"""Which mount a path lies on, and what is said where it is none of 3FS."""

from __future__ import annotations

import os
import uuid
from pathlib import Path

import pytest

from hicache_backends.errors import StorageUnavailable
from hicache_backends.usrbio import layout
from hicache_backends.usrbio.mount import check_file, find_mount
from tests.threefs.stand_in import ThreeFs


def mountinfo(tmp_path: Path, *mounts: tuple[str | Path, str]) -> Path:
    lines = [
        f"{20 + i} 1 0:{30 + i} / {str(point).replace(' ', chr(92) + '040')} rw - {kind} source rw"
        for i, (point, kind) in enumerate(mounts)
    ]
    path = tmp_path / "mountinfo"
    path.write_text("\n".join(lines) + "\n")
    return path


def fake(tmp_path: Path, name: str = "a mount") -> Path:
    point = tmp_path / name
    (point / layout.IOVS_DIR).mkdir(parents=True)
    return point


def test_the_longest_mount_point_counts_and_of_equal_ones_the_last(tmp_path: Path) -> None:
    point = fake(tmp_path)
    (point / "deep").mkdir()
    found = find_mount(
        str(point / "deep"),
        mountinfo(tmp_path, ("/", "ext4"), (point, "tmpfs"), (point, "fuse.hf3fs")),
    )
    assert (found.point, found.device) == (str(point), point.stat().st_dev)
    assert found.iovs == f"{point}/3fs-virt/iovs"
    covered = mountinfo(tmp_path, (point, "fuse.hf3fs"), (point, "tmpfs"), ("/", "ext4"))
    with pytest.raises(StorageUnavailable, match="is of type tmpfs"):
        find_mount(str(point / "deep"), covered)


def test_a_neighbour_with_the_same_beginning_is_another_mount(tmp_path: Path) -> None:
    point = fake(tmp_path)
    other = tmp_path / "a mount2"
    other.mkdir()
    with pytest.raises(StorageUnavailable, match=r"/ is of type ext4, not fuse\.hf3fs"):
        find_mount(str(other), mountinfo(tmp_path, ("/", "ext4"), (point, "fuse.hf3fs")))


def test_a_mount_without_the_virtual_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StorageUnavailable, match="has no 3fs-virt"):
        find_mount(str(tmp_path), mountinfo(tmp_path, ("/", "ext4"), (tmp_path, "fuse.hf3fs")))


def test_a_path_that_is_missing_is_named(tmp_path: Path) -> None:
    point = fake(tmp_path)
    with pytest.raises(StorageUnavailable, match="gone does not exist"):
        find_mount(str(point / "gone"), mountinfo(tmp_path, (point, "fuse.hf3fs")))


def test_chunk_and_device_are_those_of_the_files(fs: ThreeFs, tmp_path: Path) -> None:
    found = find_mount(str(fs.mount))
    assert (found.point, found.chunk_bytes) == (str(fs.mount), 64 << 10)
    fd = os.open(fs.mount / "file", os.O_RDWR | os.O_CREAT)
    assert os.fstat(fd).st_dev == found.device
    check_file(fd)
    os.close(fd)
    with (
        (tmp_path / "elsewhere").open("w") as other,
        pytest.raises(StorageUnavailable, match="not on 3FS"),
    ):
        check_file(other.fileno())


def test_a_dead_mount_is_refused_with_the_remedy(fs: ThreeFs) -> None:
    fs.kill()
    with pytest.raises(StorageUnavailable, match="restart its hf3fs_fuse_main"):
        find_mount(str(fs.mount))


def test_keys_and_semaphores_are_the_daemons() -> None:
    name = uuid.UUID(int=1)
    assert layout.data_key(name) == "00000000-0000-0000-0000-000000000001"
    assert layout.ring_key(name, -8, for_read=True) == f"{name}.r-8.t0"
    assert layout.ring_key(name, 0, for_read=False) == f"{name}.w0.t0"
    here = f"{layout.SHM_DIR}/sem.hf3fs-submit-ios.x"
    assert layout.semaphore_path(here) == here
    for elsewhere in (f"{layout.SHM_DIR}/x", f"{layout.SHM_DIR}/../sem.x", "/sem.x", "sem.x"):
        assert layout.semaphore_path(elsewhere) is None
