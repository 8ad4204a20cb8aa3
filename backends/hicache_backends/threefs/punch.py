"""Giving the space of a file back at once: 3FS frees that of a deleted file minutes later."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections.abc import Sequence
from pathlib import Path

from hicache_backends.segment.plain import open_plain

_PUNCH_IOCTL = 0x7E90680D
_RANGES = 1000
_REQUEST = struct.Struct(f"=iIQ{2 * _RANGES}Q")
"""Number of ranges, padding, flags, starts, ends: `Hf3fsIoctlPunchHoleArg` of 3FS."""


def delete_file(path: str) -> None:
    """Give a file's space back and remove it; one that is not there is fine. Raises OSError."""
    with contextlib.suppress(OSError):
        punch(path)
    with contextlib.suppress(FileNotFoundError, IsADirectoryError):
        Path(path).unlink()


def punch(path: str, holes: Sequence[tuple[int, int]] | None = None) -> None:
    """Make these ranges of bytes, multiples of the chunk, holes; None: the whole file. Raises
    OSError."""
    fd = open_plain(path, os.O_RDWR)
    try:
        if holes is None:
            status = os.fstat(fd)
            holes = [(0, -(-status.st_size // status.st_blksize) * status.st_blksize)]
        for start in range(0, len(holes), _RANGES):
            some = holes[start : start + _RANGES]
            empty = [0] * (_RANGES - len(some))
            begins, ends = ([hole[i] for hole in some] + empty for i in (0, 1))
            request = bytearray(_REQUEST.pack(len(some), 0, 0, *begins, *ends))
            fcntl.ioctl(fd, _PUNCH_IOCTL, request)
    finally:
        os.close(fd)
