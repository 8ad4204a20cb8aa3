"""What 3FS's FUSE daemon and its clients agree on: names, sizes, numbers. It carries no version."""

from __future__ import annotations

import os
import uuid

ARGUMENTS_BYTES = 56
COMPLETION_BYTES = 24
SUBMISSION_BYTES = 16
HEADER_BYTES = 16
SEMAPHORE_BYTES = 32
SPARE_BYTES = 4096

SHM_DIR = "/dev/shm"  # noqa: S108 - where the daemon looks for shared memory
VIRTUAL_DIR = "3fs-virt"
IOVS_DIR = "3fs-virt/iovs"
SUBMIT_LINK = "submit-ios"
"""In `iovs`: a symlink to the semaphore that wakes the daemon, new on each of its starts."""

MAGIC_IOCTL = 0x80046802
MAGIC = 0x8F3F5FFF
"""What the ioctl answers on a file of 3FS."""

FILE_SYSTEM = "fuse.hf3fs"


def ring_bytes(entries: int) -> int:
    """Bytes of the shared memory of a ring with room for so many I/Os in flight."""
    cell_bytes = ARGUMENTS_BYTES + COMPLETION_BYTES + SUBMISSION_BYTES
    return HEADER_BYTES + SEMAPHORE_BYTES + cell_bytes * (entries + 1) + SPARE_BYTES


def data_key(name: uuid.UUID) -> str:
    """The link in `iovs` of memory for data, as one block."""
    return str(name)


def ring_key(name: uuid.UUID, io_depth: int, *, for_read: bool) -> str:
    """The link in `iovs` of a ring. The daemon dereferences the time even where it is unused."""
    return f"{name}.{'r' if for_read else 'w'}{io_depth}.t0"


def semaphore_path(link: str) -> str | None:
    """The file of the submit semaphore that `submit-ios` points to; None for another target."""
    directory, name = os.path.split(link)
    return link if directory == SHM_DIR and name.startswith("sem.") else None
