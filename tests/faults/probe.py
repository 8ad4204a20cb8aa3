"""Calls of every kind on files, so that the rig itself can be tested: `probe call root`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path


def _open(root: Path) -> int:
    return os.open(root / "file", os.O_RDWR | os.O_CREAT)


CALLS: dict[str, Callable[[Path], object]] = {
    "open": lambda root: os.close(_open(root)),
    "read": lambda root: os.read(_open(root), 8),
    "pread": lambda root: os.pread(_open(root), 8, 0),
    "preadv": lambda root: os.preadv(_open(root), [bytearray(4), bytearray(4)], 0),
    "write": lambda root: os.write(_open(root), bytes(8)),
    "pwrite": lambda root: os.pwrite(_open(root), bytes(8), 0),
    "pwritev": lambda root: os.pwritev(_open(root), [bytes(4), bytes(4)], 0),
    "allocate": lambda root: os.posix_fallocate(_open(root), 0, 8),
    "truncate": lambda root: os.ftruncate(_open(root), 8),
    "rename": lambda root: (root / "file").replace(root / "other"),
    "unlink": lambda root: (root / "file").unlink(),
    "mkdir": lambda root: (root / "directory").mkdir(),
    "relative": lambda root: os.open("file", os.O_RDONLY, dir_fd=os.open(root, os.O_RDONLY)),
}


def main() -> None:
    call, root = sys.argv[1], Path(sys.argv[2])
    try:
        answer = CALLS[call](root)
    except OSError as error:
        answer = f"errno {error.errno}"
    sys.stdout.write(f"{answer}\n")


if __name__ == "__main__":
    main()
