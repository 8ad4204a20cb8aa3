"""The backend `3fs`: the segment store on a directory of a 3FS mount."""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass, field
from pathlib import Path

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.io.engine import MAX_TRANSFER_BYTES, Engine
from hicache_backends.io.select import open_engine
from hicache_backends.segment.format import RECORD_BYTES
from hicache_backends.segment.medium import Limits
from hicache_backends.segment.opening import SegmentOptions
from hicache_backends.segment.store import SegmentStore
from hicache_backends.sizes import format_size
from hicache_backends.threefs.aside import Aside
from hicache_backends.threefs.filing import ThreeFsFiling
from hicache_backends.threefs.geometry import Geometry
from hicache_backends.usrbio.clients import CLIENTS
from hicache_backends.usrbio.engine import UsrbioEngine
from hicache_backends.usrbio.memory import SharedMemory
from hicache_backends.usrbio.mount import Mount, cluster_name, find_mount
from hicache_backends.usrbio.ring import RingSettings

IO_ENGINES = ("auto", "usrbio", "fuse")
_OPEN_MS = 30_000.0

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ThreeFsOptions:
    """`mount_point`: a directory on a 3FS mount, made if its parent is there.

    `cluster_id` names the medium; None: what the mount calls itself. `token`: not needed, since
    the mount's daemon holds the one that counts. `io_engine`: "usrbio" moves pages through 3FS's
    rings or fails, "fuse" through the mount, "auto" by rings where they work. `ring_client`: see
    `usrbio.clients`. `rings`: of each direction. `staging_bytes`: shared memory of all rings.
    Capacity and floor as for `nvme`, the capacity that of all hosts together.
    """

    mount_point: str
    cluster_id: str | None = None
    token: str | None = field(default=None, repr=False)
    io_engine: str = "auto"
    ring_client: str = "auto"
    rings: int = 4
    staging_bytes: int = 256 << 20
    capacity_bytes: int | None = None
    free_floor_bytes: int | None = None
    segment_bytes: int | None = None
    max_transfer_bytes: int = MAX_TRANSFER_BYTES


class ThreeFsStorage(SegmentStore):
    """Pages on 3FS. `geometry`: how they fit the chunks; `fallback`: why the rings are not used
    though they might have been, "" where they are, or were not to be."""

    def __init__(
        self,
        namespace: Namespace,
        engine: Engine,
        filing: ThreeFsFiling,
        options: SegmentOptions,
        geometry: Geometry,
        fallback: str = "",
        *,
        shared: bool = False,
    ) -> None:
        self.geometry = geometry
        self.fallback = fallback
        self._engine = engine
        super().__init__(namespace, engine, filing, options, shared=shared)

    def allocate(self, size: int) -> SharedMemory:
        """Memory of `size` bytes whose pages the rings move without a copy; see
        `UsrbioEngine.allocate`. Raises StorageUnavailable."""
        if not isinstance(self._engine, UsrbioEngine):
            raise StorageUnavailable("only the usrbio engine moves pages without a copy")
        return self._engine.allocate(size)

    def close(self, timeout_ms: float = 5000) -> bool:
        closed = super().close(timeout_ms)
        if isinstance(self._engine, UsrbioEngine):
            self._engine.close(timeout_ms)
        return closed

    def abandon(self) -> None:
        """In a forked child: nothing of the store hangs on its descriptors, and to close them may
        hang; the engine lets go of its own."""

    def stats(self) -> dict[str, int | float | str]:
        engine = self._engine.stats() if isinstance(self._engine, UsrbioEngine) else {}
        return {
            **super().stats(),
            "io_engine": "usrbio" if engine else "fuse",
            "chunk_bytes": self.geometry.chunk_bytes,
            **{f"ring_{name}": value for name, value in engine.items()},
        }


def open_threefs(
    namespace: Namespace, options: ThreeFsOptions, *, shared: bool = False
) -> ThreeFsStorage:
    """Open a new store of this process. `shared`: other hosts and processes use the directory.

    Raises ConfigError, StorageUnavailable, IdentityMismatch.
    """
    _check(options)
    aside = Aside()
    deadline = Deadline.after_ms(_OPEN_MS)

    def open_one() -> ThreeFsStorage:
        return _open(namespace, options, aside, shared=shared)

    try:
        return aside.run(open_one, deadline, late=ThreeFsStorage.close)
    except TimeoutError:
        raise StorageUnavailable(
            f"the 3FS mount at {options.mount_point} does not answer: is its daemon hung? Restart "
            "its hf3fs_fuse_main"
        ) from None


def _open(
    namespace: Namespace, options: ThreeFsOptions, aside: Aside, *, shared: bool
) -> ThreeFsStorage:
    root = options.mount_point.rstrip("/") or "/"
    mount = _mount(root)
    geometry = Geometry(namespace.page_bytes, mount.chunk_bytes)
    _check_capacity(options, geometry)
    if not geometry.is_chunked:
        _log.warning("%s: %s", root, chunk_advice(geometry))
    engine, fallback = _engine(root, options, geometry)
    cluster = options.cluster_id or cluster_name(root)
    limits = Limits(options.capacity_bytes, options.free_floor_bytes)
    by_ring = isinstance(engine, UsrbioEngine)
    segments = SegmentOptions(
        roots=(root,), segment_bytes=options.segment_bytes, direct=not by_ring, staged=not by_ring
    )
    try:
        filing = ThreeFsFiling(geometry, cluster, limits, engine, aside)
        return ThreeFsStorage(
            namespace, engine, filing, segments, geometry, fallback, shared=shared
        )
    except BaseException:
        if isinstance(engine, UsrbioEngine):
            engine.close()
        raise


def _check_capacity(options: ThreeFsOptions, geometry: Geometry) -> None:
    """Raises ConfigError."""
    capacity, least = options.capacity_bytes, geometry.slot_bytes + RECORD_BYTES
    if capacity is not None and capacity < least:
        raise ConfigError(
            f"3fs.capacity is {format_size(capacity)}: less than the {format_size(least)} that one "
            f"page of {format_size(geometry.page_bytes)} takes with its record"
        )


def chunk_advice(geometry: Geometry) -> str:
    """What becomes of a page that is no whole number of chunks, and what to do."""
    return (
        f"a page of {geometry.page_bytes} bytes would leave {geometry.waste:.0%} of its chunks of "
        f"{geometry.chunk_bytes} bytes empty, so pages share chunks, and 3FS copies a chunk at "
        "every write to it; give the directory a chunk size that pages are a multiple of"
    )


def _mount(root: str) -> Mount:
    """Raises StorageUnavailable where the directory is not on 3FS or cannot be made."""
    path = Path(root)
    missing = False
    with contextlib.suppress(OSError):  # of a dead daemon: the mount is told apart below
        missing = not path.exists() and path.parent.exists()
    if missing:
        find_mount(str(path.parent))
        try:
            path.mkdir(exist_ok=True)
        except OSError as error:
            raise StorageUnavailable(f"{root} cannot be made: {error.strerror}") from None
    mount = find_mount(root)
    if not os.access(root, os.W_OK | os.X_OK):
        raise StorageUnavailable(f"{root} is not writable for this user")
    return mount


def _engine(root: str, options: ThreeFsOptions, geometry: Geometry) -> tuple[Engine, str]:
    """The engine, and why it is not the one that would have been better."""
    if options.io_engine != "fuse":
        block = geometry.block_bytes(options.max_transfer_bytes)
        settings = RingSettings(
            block_bytes=block, rings=options.rings, staging_bytes=options.staging_bytes
        )
        try:
            return UsrbioEngine(root, settings, client=options.ring_client), ""
        except StorageUnavailable as error:
            if options.io_engine == "usrbio":
                raise StorageUnavailable(
                    f'{error}; or set io_engine to "auto" or "fuse" to go through the mount'
                ) from error
            _log.warning("going through the mount, which is slower: %s", error)
            why = str(error)
    else:
        why = ""
    return open_engine("auto", max_transfer_bytes=options.max_transfer_bytes), why


def _check(options: ThreeFsOptions) -> None:
    """Raises ConfigError."""
    if not options.mount_point or "\0" in options.mount_point:
        raise ConfigError("3fs.mount_point names no directory")
    names: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        ("io_engine", options.io_engine, IO_ENGINES),
        ("ring_client", options.ring_client, CLIENTS),
    )
    for name, value, known in names:
        if value not in known:
            raise ConfigError(f"3fs.{name} is one of {', '.join(known)}, not {value!r}")
    if options.cluster_id is not None and not 0 < len(options.cluster_id.encode()) <= 128:
        raise ConfigError("3fs.cluster_id has 1 to 128 bytes")
    least: dict[str, int] = {
        "capacity_bytes": 1,
        "free_floor_bytes": 0,
        "segment_bytes": 1,
        "max_transfer_bytes": 4096,
    }
    for name, lowest in least.items():
        count: int | None = getattr(options, name)
        if count is not None and count < lowest:
            raise ConfigError(f"3fs.{name} must be at least {lowest}, not {count}")
