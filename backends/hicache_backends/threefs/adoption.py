"""Taking over a store whose process is gone: its index and the right to delete, never to write.

The adopters of a store are numbered. Whoever makes `adopter-<n>` is the one, for as long as its
own store is in use; then the next may make `adopter-<n + 1>`.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from pathlib import Path

from hicache_backends.segment.plain import open_plain
from hicache_backends.threefs.tenure import LEASE_S, Tenure

_NAME = re.compile(r"adopter-([0-9]{6})")
_STORE_BYTES = 16


def claim(directory: str, store: bytes) -> bool:
    """Take the store at `directory` over for the store of this uuid; False where another has it.
    Raises OSError."""
    numbers = _numbers(directory)
    if numbers and _is_alive(directory, numbers[-1]):
        return False
    number = numbers[-1] + 1 if numbers else 1
    try:
        fd = open_plain(_path(directory, number), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_DIRECT)
    except FileExistsError:
        return False
    try:
        os.pwrite(fd, store, 0)
    finally:
        os.close(fd)
    if _numbers(directory)[-1:] != [number]:  # others came and went since the first look
        Path(_path(directory, number)).unlink(missing_ok=True)
        return False
    for old in numbers:
        Path(_path(directory, old)).unlink(missing_ok=True)
    return True


def is_adopted(directory: str) -> bool:
    """Whether a process that runs has taken the store over."""
    numbers = _numbers(directory)
    return bool(numbers) and _is_alive(directory, numbers[-1])


def _numbers(directory: str) -> list[int]:
    with contextlib.suppress(OSError):
        names = (_NAME.fullmatch(path.name) for path in Path(directory).iterdir())
        return sorted(int(name[1]) for name in names if name)
    return []


def _is_alive(directory: str, number: int) -> bool:
    """An adopter that cannot be read, or has not yet said who it is, is taken to be alive, the
    latter for as long as a lease."""
    try:
        fd = open_plain(_path(directory, number), os.O_RDONLY | os.O_DIRECT)
        try:
            store = os.pread(fd, _STORE_BYTES, 0)
            made_s = os.fstat(fd).st_mtime
        finally:
            os.close(fd)
        if len(store) < _STORE_BYTES:
            return time.time() - made_s < LEASE_S
        tenure = Tenure.read(str(Path(directory).with_name(store.hex())))
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return tenure is not None and not tenure.is_over


def _path(directory: str, number: int) -> str:
    return f"{directory}/adopter-{number:06d}"
