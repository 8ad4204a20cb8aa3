from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path

import pytest

from tests.threefs.client import Client, Io, names
from tests.threefs.stand_in import ThreeFs, is_mounted, need_mounts

CHUNK = 64 << 10
GET_CLUSTER, GET_MAGIC, PUNCH_HOLES = 0x80206800, 0x80046802, 0x7E90680D
HOUR_MS = 3_600_000


def punch(file: int, start: int, end: int) -> None:
    ranges = struct.pack("=iiQ2000Q", 1, 0, 0, start, *[0] * 999, end, *[0] * 999)
    fcntl.ioctl(file, PUNCH_HOLES, bytearray(ranges))


def aligned(size: int, fill: bytes = b"\0") -> mmap.mmap:
    memory = mmap.mmap(-1, size)
    memory[:] = fill * size
    return memory


def test_the_mount_says_that_it_is_3fs(fs: ThreeFs, client: Client) -> None:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    fields = next(line for line in lines if f" {fs.mount} " in line).split()
    assert fields[fields.index("-") + 1] == "fuse.hf3fs"
    assert fs.iovs.is_dir()
    magic, cluster = bytearray(4), bytearray(32)
    file = client.open("any")
    fcntl.ioctl(file, GET_MAGIC, magic)
    fcntl.ioctl(file, GET_CLUSTER, cluster)
    assert magic == struct.pack("=I", 0x8F3F5FFF)
    assert cluster.rstrip(b"\0") == b"stand-in"


def test_files_pass_through_with_their_own_inodes(fs: ThreeFs, other: ThreeFs) -> None:
    directory = fs.mount / "one"
    directory.mkdir()
    (directory / "page").write_bytes(b"page" * 1000)
    (directory / "link").symlink_to("page")
    (directory / "page").rename(directory / "renamed")
    assert names(directory) == {"link", "renamed"}
    assert (directory / "link").readlink() == Path("page")
    (directory / "link").unlink()
    found = (directory / "renamed").stat()
    assert (found.st_size, found.st_blksize) == (4000, CHUNK)
    seen = [root / "one" / "renamed" for root in (fs.backing, other.mount)]
    assert [path.stat().st_ino for path in seen] == [found.st_ino] * 2
    assert [path.read_bytes() for path in seen] == [b"page" * 1000] * 2
    (directory / "renamed").unlink()
    directory.rmdir()
    assert names(fs.mount) == names(fs.backing) == set()
    assert os.statvfs(fs.mount).f_bavail > 0


def test_direct_reads_and_writes_pass_whole(fs: ThreeFs, client: Client) -> None:
    file = client.open("direct", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    data = aligned(16 * CHUNK, b"d")
    assert os.pwritev(file, [data], 0) == os.preadv(file, [aligned(16 * CHUNK)], 0) == 16 * CHUNK
    assert fs.counters()["fuse_writes"] == 1


def test_there_is_no_fallocate_and_holes_are_punched_by_ioctl(client: Client) -> None:
    file = client.open("holes")
    os.write(file, b"x" * 3 * CHUNK)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.fallocate(file, 3, ctypes.c_long(0), ctypes.c_long(CHUNK)) == -1
    assert ctypes.get_errno() == errno.EOPNOTSUPP
    before = os.fstat(file).st_blocks
    punch(file, CHUNK, 2 * CHUNK)
    with pytest.raises(OSError, match="Invalid"):
        punch(file, 0, CHUNK - 1)
    os.fchmod(file, 0o600)  # what is cached of it is gone
    assert os.fstat(file).st_blocks == before - CHUNK // 512
    assert os.fstat(file).st_size == 3 * CHUNK


def test_truncation_makes_the_last_chunk_and_no_other(fs: ThreeFs, client: Client) -> None:
    file = client.open("sparse")
    os.ftruncate(file, 4 * CHUNK)
    memory = client.memory(4 * CHUNK)
    ring = client.ring(4, reads=True)
    assert ring.run([Io(memory, 0, file, 0, CHUNK)]) == [0]
    assert ring.run([Io(memory, 0, file, 2 * CHUNK, CHUNK)]) == [0]
    assert ring.run([Io(memory, 0, file, 3 * CHUNK, CHUNK)]) == [CHUNK]
    assert fs.backing.joinpath("sparse").stat().st_blocks * 512 <= 2 * CHUNK


def test_a_hole_reads_short_and_the_kernel_takes_it_for_the_end(
    fs: ThreeFs, client: Client
) -> None:
    file, page = client.open("gap", os.O_RDWR | os.O_CREAT | os.O_DIRECT), aligned(4096, b"?")
    os.ftruncate(file, 4 * CHUNK)
    assert os.preadv(file, [page], CHUNK) == 0
    assert page[:1] == b"?"
    buffered = client.open("gap")
    assert os.pread(buffered, 4096, CHUNK) == b""
    assert os.preadv(file, [page], 3 * CHUNK) == 4096
    assert page[:] == bytes(4096)
    assert (fs.backing / "gap").stat().st_size == 4 * CHUNK


def test_locks_end_at_the_host(fs: ThreeFs, other: ThreeFs) -> None:
    (fs.mount / "lock").touch()
    descriptors = [os.open(root / "lock", os.O_RDWR) for root in (fs.mount, fs.mount, other.mount)]
    try:
        mine, again, elsewhere = descriptors
        fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with pytest.raises(BlockingIOError):
            fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.flock(elsewhere, fcntl.LOCK_EX | fcntl.LOCK_NB)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def test_absence_and_attributes_are_cached(tmp_path: Path, fs: ThreeFs) -> None:
    mount = tmp_path / "slow"
    with ThreeFs(fs.backing, mount, attr_ms=HOUR_MS, entry_ms=HOUR_MS, absent_ms=HOUR_MS) as slow:
        assert not (slow.mount / "late").exists()
        (fs.mount / "late").write_bytes(b"x")
        assert not (slow.mount / "late").exists()
        (fs.mount / "early").write_bytes(b"x")
        assert (slow.mount / "early").stat().st_size == 1
        with (fs.mount / "early").open("ab") as file:
            file.write(b"y")
        assert (slow.mount / "early").stat().st_size == 1


def test_a_page_cache_does_not_see_what_rings_write(client: Client) -> None:
    file = client.open("cached")
    os.pwrite(file, b"old!" * (CHUNK // 4), 0)
    assert os.pread(file, 4, 0) == b"old!"
    memory = client.memory(CHUNK)
    memory.map[:] = b"new!" * (CHUNK // 4)
    assert client.ring(1, reads=False).run([Io(memory, 0, file, 0, CHUNK)]) == [CHUNK]
    assert os.pread(file, 4, 0) == b"old!"
    direct, page = client.open("cached", os.O_RDONLY | os.O_DIRECT), aligned(4096)
    assert os.preadv(direct, [page], 0) == 4096
    assert page[:4] == b"new!"


def test_reads_and_writes_through_fuse_fail_on_demand(fs: ThreeFs, client: Client) -> None:
    file = client.open("failing", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    os.pwritev(file, [aligned(4096)], 0)
    fs.set(fuse_fail_share=1, fail_errno=errno.EIO)
    with pytest.raises(OSError, match="Input/output"):
        os.preadv(file, [aligned(4096)], 0)
    fs.set(fuse_fail_share=0, no_space=1)
    with pytest.raises(OSError, match="No space"):
        os.pwritev(file, [aligned(4096)], 0)
    fs.set(no_space=0, read_only=1)
    with pytest.raises(OSError, match="Read-only"):
        os.open(fs.mount / "another", os.O_CREAT | os.O_WRONLY)
    assert os.preadv(file, [aligned(4096)], 0) == 4096


def test_nothing_stays_mounted(tmp_path: Path) -> None:
    fs = ThreeFs(tmp_path / "backing", tmp_path / "mount")
    with fs:
        semaphores = [link.readlink() for link in fs.iovs.iterdir()]
        assert len(semaphores) == 3
        assert all(path.exists() for path in semaphores)
        fs.kill()
        assert is_mounted(fs.mount)
    assert not is_mounted(fs.mount)
    assert not any(path.exists() for path in semaphores)


def test_without_the_right_to_mount_only_ci_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="needs root"):
        need_mounts()
    monkeypatch.setenv("CI", "1")
    with pytest.raises(pytest.fail.Exception, match="needs root"):
        need_mounts()
