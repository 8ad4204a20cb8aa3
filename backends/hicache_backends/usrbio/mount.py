"""The 3FS mount that a path lies on."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.errors import StorageUnavailable
from hicache_backends.usrbio.layout import (
    FILE_SYSTEM,
    IOVS_DIR,
    MAGIC,
    MAGIC_IOCTL,
    VIRTUAL_DIR,
)

_CLUSTER_IOCTL, _CLUSTER_BYTES = 0x80206800, 32
_MOUNTINFO = Path("/proc/self/mountinfo")


@dataclass(frozen=True, slots=True)
class Mount:
    """point: where it is mounted; device: st_dev of its files; chunk_bytes: of the files that
    are created at the path which was asked for."""

    point: str
    device: int
    chunk_bytes: int

    @property
    def iovs(self) -> str:
        """The directory in which memory is registered."""
        return f"{self.point}/{IOVS_DIR}"


def find_mount(path: str, mountinfo: Path = _MOUNTINFO) -> Mount:
    """Raises StorageUnavailable, saying what is wrong with the path and what to do."""
    point, kind = _mount_of(os.path.realpath(path), mountinfo.read_text())
    if kind != FILE_SYSTEM:
        raise StorageUnavailable(
            f"{path} is not on 3FS: {point} is of type {kind or 'unknown'}, not {FILE_SYSTEM}; "
            "mount 3FS there with hf3fs_fuse_main, or correct the path"
        )
    try:
        facts = Path(path).stat()
        Path(point, VIRTUAL_DIR).stat()
        iovs = Path(point, IOVS_DIR).is_dir()
    except OSError as error:
        raise StorageUnavailable(_why(path, point, error)) from None
    if not iovs:
        raise StorageUnavailable(f"{point} has no {IOVS_DIR}: its FUSE daemon offers no USRBIO")
    return Mount(point, facts.st_dev, facts.st_blksize)


def check_mounted(path: str) -> None:
    """Raises OSError, ENOTCONN, where no 3FS is mounted any more: what lies at the path then is
    nobody's store."""
    if _mount_of(os.path.realpath(path), _MOUNTINFO.read_text())[1] != FILE_SYSTEM:
        raise OSError(errno.ENOTCONN, "3FS is not mounted there right now", path)


def cluster_name(path: str) -> str:
    """What the mount that a directory lies on calls itself. Raises StorageUnavailable."""
    name = bytearray(_CLUSTER_BYTES)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _CLUSTER_IOCTL, name)
        finally:
            os.close(fd)
    except OSError as error:
        raise StorageUnavailable(
            f"the 3FS mount does not tell its name ({error}): set 3fs.cluster_id"
        ) from None
    return name.split(b"\0")[0].decode(errors="replace")


def check_file(fd: int) -> None:
    """Raises StorageUnavailable for a descriptor that 3FS's daemon does not know as its own."""
    answer = bytearray(4)
    try:
        fcntl.ioctl(fd, MAGIC_IOCTL, answer)
    except OSError as error:
        raise StorageUnavailable(f"the file is not on 3FS: {error}") from None
    if struct.unpack("=I", answer)[0] != MAGIC:
        raise StorageUnavailable("the file is not on 3FS: its daemon gives another answer")


def _mount_of(path: str, mountinfo: str) -> tuple[str, str]:
    """Mount point and file system type; of several at one point the last one is on top."""
    best, kind = "", ""
    for line in mountinfo.splitlines():
        mount, _, source = line.partition(" - ")
        point = _unescape(mount.split(" ")[4])
        if len(point) >= len(best) and (path == point or path.startswith(point.rstrip("/") + "/")):
            best, kind = point, source.split(" ")[0]
    return best, kind


def _unescape(field: str) -> str:
    for code, character in (("040", " "), ("011", "\t"), ("012", "\n"), ("134", "\\")):
        field = field.replace(f"\\{code}", character)
    return field


def _why(path: str, point: str, error: OSError) -> str:
    if isinstance(error, FileNotFoundError) and error.filename == path:
        return f"{path} does not exist on the 3FS mount {point}"
    if isinstance(error, FileNotFoundError):
        return (
            f"{point} has no {VIRTUAL_DIR}: it is mounted as {FILE_SYSTEM} but does not offer "
            "USRBIO; mount 3FS itself there"
        )
    return f"the 3FS mount {point} does not answer ({error}); restart its hf3fs_fuse_main"
