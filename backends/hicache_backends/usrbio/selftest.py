"""The round trip that shows that the daemon and a ring client mean the same."""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.io.engine import ReadBatch, WriteBatch
from hicache_backends.pages import Pages
from hicache_backends.segment.format import RECORD_BYTES
from hicache_backends.usrbio.mount import check_file
from hicache_backends.usrbio.ring import RingClient

_FULL = (errno.ENOSPC, errno.EDQUOT)
_PAGES = 4
_PAGE_BYTES = 4096


def self_test(client: RingClient, directory: str, deadline: Deadline) -> None:
    """Write a file in the directory by one ring, read it by another. Raises StorageUnavailable.

    The protocol carries no version, so nothing else tells.
    """
    path = Path(directory, f".self-test-{uuid.uuid4()}")
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in _FULL:
            return
        raise StorageUnavailable(f"{directory} is not writable: {error}") from None
    try:
        check_file(fd)
        why = _round_trip(client, fd, deadline)
    finally:
        with contextlib.suppress(OSError):  # of a mount that has just died
            os.close(fd)
        with contextlib.suppress(OSError):
            path.unlink()
    if why:
        raise StorageUnavailable(
            f"the ring self-test failed on {client.mount.point} with the {client.name} client: "
            f"{why}; see the log of hf3fs_fuse_main, and whether /dev/shm is shared with it"
        )


def _round_trip(client: RingClient, fd: int, deadline: Deadline) -> str:
    """What went wrong; empty if nothing did."""
    sent = [os.urandom(_PAGE_BYTES) for _ in range(_PAGES)]
    found = [bytearray(_PAGE_BYTES) for _ in range(_PAGES)]
    fds = np.full(_PAGES, fd, np.int32)
    offsets = np.arange(_PAGES, dtype=np.int64) * _PAGE_BYTES
    digests = bytes(_PAGES * DIGEST_BYTES)
    write = WriteBatch(
        fds,
        offsets,
        Pages.from_buffers(sent, writable=False),
        digests,
        np.full(_PAGES, -1, np.int32),
        np.zeros(_PAGES, np.int64),
        bytearray(_PAGES * RECORD_BYTES),
        np.zeros(_PAGES, np.bool_),
    )
    read = ReadBatch(fds, offsets, Pages.from_buffers(found, writable=True), digests)
    written = client.write(write, deadline)
    if set(written.results.tolist()) <= {-number for number in _FULL}:
        return ""  # it was understood; that there is no room is not for here
    if why := _why(written.results.tolist()):
        return f"writing, {why}"
    got = client.read(read, deadline)
    if why := _why(got.results.tolist()):
        return f"reading, {why}"
    if sent != found or (written.checksums != got.checksums).any():
        return "other bytes came back than were written"
    return ""


def _why(results: list[int]) -> str:
    bad = [result for result in results if result != _PAGE_BYTES]
    if not bad:
        return ""
    if bad[0] < 0:
        return f"{len(bad)} of {len(results)} I/Os gave {os.strerror(-bad[0])}"
    return f"{bad[0]} of {_PAGE_BYTES} bytes were moved"
