"""Local disks: the segment store on one directory a drive."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from hicache_backends.errors import ConfigError
from hicache_backends.identity import Namespace
from hicache_backends.io.engine import MAX_TRANSFER_BYTES
from hicache_backends.io.select import open_engine
from hicache_backends.segment.filing import PlainFiling
from hicache_backends.segment.medium import Limits
from hicache_backends.segment.opening import SegmentOptions
from hicache_backends.segment.segment import stored_bytes
from hicache_backends.segment.store import SegmentStore
from hicache_backends.sizes import format_size

IO_MODES = ("auto", "direct", "buffered")
ZERO_COPY = ("auto", "never")
MAX_SEGMENT_BYTES = 64 << 30


@dataclass(frozen=True, slots=True)
class NvmeOptions:
    """`paths`: a directory on each drive, made if its parent exists (`create`).

    `capacity_bytes`: of each path, shared by every process and namespace there; None keeps what
    the path was given before, at first 80 % of what its file system has free. `free_floor_bytes`:
    what is left free on the file system; None: as before, at first 5 % of it. `segment_bytes`:
    size of one file; None: a 64th of the capacity, at most 1 GiB. `io_mode`: "direct" passes by
    the page cache where alignment allows it, "auto" where the file system takes it. `zero_copy`:
    "auto" reads and writes the caller's memory, "never" a copy, so that calls return by their
    deadline even when a disk hangs. `max_transfer_bytes`: of one read or write.
    """

    paths: tuple[str, ...]
    capacity_bytes: int | None = None
    free_floor_bytes: int | None = None
    segment_bytes: int | None = None
    io_engine: str = "auto"
    io_mode: str = "auto"
    zero_copy: str = "auto"
    max_transfer_bytes: int = MAX_TRANSFER_BYTES
    create: bool = True


class NvmeStorage(SegmentStore):
    """Pages on local disks."""


def open_nvme(namespace: Namespace, options: NvmeOptions, *, shared: bool = False) -> NvmeStorage:
    """Open the store of this process. `shared`: other processes use the same paths.

    Raises ConfigError, StorageUnavailable, IdentityMismatch.
    """
    _check(options, namespace.page_bytes)
    engine = open_engine(options.io_engine, max_transfer_bytes=options.max_transfer_bytes)
    limits = Limits(options.capacity_bytes, options.free_floor_bytes)
    filing = PlainFiling(namespace.page_bytes, limits, create=options.create)
    segments = SegmentOptions(
        roots=tuple(path.rstrip("/") or "/" for path in options.paths),
        segment_bytes=options.segment_bytes,
        direct=options.io_mode != "buffered",
        staged=options.zero_copy == "never",
    )
    return NvmeStorage(namespace, engine, filing, segments, shared=shared)


def _check(options: NvmeOptions, page_bytes: int) -> None:
    """Raises ConfigError."""
    if not options.paths or not all(options.paths):
        raise ConfigError("nvme.paths names no directory; give one for each drive")
    if any("\0" in path for path in options.paths):
        raise ConfigError("nvme.paths: a path has a zero byte")
    if len({_identity(path) for path in options.paths}) < len(options.paths):
        raise ConfigError("nvme.paths names a directory twice")
    for name, value, known in (
        ("io_mode", options.io_mode, IO_MODES),
        ("zero_copy", options.zero_copy, ZERO_COPY),
    ):
        if value not in known:
            raise ConfigError(f"nvme.{name} is one of {', '.join(known)}, not {value!r}")
    for name, least in (("capacity_bytes", 1), ("free_floor_bytes", 0), ("segment_bytes", 1)):
        count: int | None = getattr(options, name)
        if count is not None and count < least:
            raise ConfigError(f"nvme.{name} must be at least {least}, not {count}")
    capacity, least = options.capacity_bytes, stored_bytes(1, page_bytes)
    if capacity is not None and capacity < least:
        raise ConfigError(
            f"nvme.capacity is {format_size(capacity)}: less than the {format_size(least)} that "
            f"one page of {format_size(page_bytes)} takes with its record"
        )
    if options.segment_bytes is not None:
        most = min(options.capacity_bytes or MAX_SEGMENT_BYTES, MAX_SEGMENT_BYTES)
        if options.segment_bytes > most:
            raise ConfigError(
                f"nvme.segment_bytes is {options.segment_bytes}, but a segment, which takes its "
                f"space when it is made, has at most the capacity and {MAX_SEGMENT_BYTES} bytes"
            )


def _identity(path: str) -> object:
    """Equal for two names of one directory, whether or not it is there yet."""
    try:
        status = Path(path).stat()
    except OSError:
        return os.path.realpath(path)
    return status.st_dev, status.st_ino
