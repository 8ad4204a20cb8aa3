"""What a ring client is: batches of pages through 3FS's rings, whoever speaks the protocol."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError
from hicache_backends.io.engine import IoResult, ReadBatch, WriteBatch
from hicache_backends.sizes import format_size
from hicache_backends.usrbio.memory import SharedMemory
from hicache_backends.usrbio.mount import Mount

MAX_BLOCK_BYTES = 4 << 20
"""3FS moves at most this much of a chunk well in one I/O."""

_ENTRIES = 128
_JOB_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class RingSettings:
    """block_bytes: the largest I/O, best a slot of a segment; rings: of each direction, as many
    calls run at once; staging_bytes: bound on the staging memory of all rings together; entries:
    I/Os in flight a ring, 0 for as many as the staging memory has room for (at most 128);
    io_depth: I/Os of a job of the daemon's, 0 for about 8 MiB. Raises ConfigError."""

    block_bytes: int = 1 << 20
    rings: int = 4
    staging_bytes: int = 256 << 20
    entries: int = 0
    io_depth: int = 0

    def __post_init__(self) -> None:
        if not 4096 <= self.block_bytes <= MAX_BLOCK_BYTES or self.block_bytes % 4096:
            raise ConfigError(
                f"block_bytes is a multiple of 4096 up to {MAX_BLOCK_BYTES}, not {self.block_bytes}"
            )
        if self.rings < 1 or self.entries < 0 or self.io_depth < 0:
            raise ConfigError("rings is at least 1, entries and io_depth at least 0")
        least = self.ring_entries * self.block_bytes * self.rings * 2
        if least > self.staging_bytes:
            raise ConfigError(
                f"staging_bytes is {format_size(self.staging_bytes)}, but {self.rings} rings to "
                f"read by and {self.rings} to write by, with blocks of "
                f"{format_size(self.block_bytes)}, need at least {format_size(least)}"
            )

    @property
    def ring_entries(self) -> int:
        """I/Os in flight a ring."""
        room = self.staging_bytes // (2 * self.rings * self.block_bytes)
        return self.entries or max(1, min(_ENTRIES, room))

    @property
    def job(self) -> int:
        """I/Os of a job: the copies of one overlap with the I/O of the next."""
        return min(self.ring_entries, self.io_depth or max(1, _JOB_BYTES // self.block_bytes))


class RingClient(ABC):
    """One connection to one life of the daemon. Safe to use from several threads.

    Results are those of `io.engine.Engine`; besides, -ENOTCONN: the daemon died meanwhile;
    -ESTALE: the file was opened before it died, or is not on this mount: open it again; -EPROTO:
    it answered what cannot be.
    """

    name: str

    def __init__(self, mount: Mount, settings: RingSettings) -> None:
        self.mount = mount
        self.settings = settings

    @abstractmethod
    def read(self, batch: ReadBatch, deadline: Deadline) -> IoResult:
        """As `Engine.read`, and back by the deadline whatever the daemon does."""

    @abstractmethod
    def write(self, batch: WriteBatch, deadline: Deadline) -> IoResult:
        """As `Engine.write`, and back by the deadline whatever the daemon does."""

    @abstractmethod
    def register(self, memory: SharedMemory, deadline: Deadline) -> None:
        """Move pages in this memory without a copy. Raises StorageUnavailable."""

    @abstractmethod
    def writes_in_doubt(self) -> set[tuple[int, int]]:
        """Inode and offset of each write that timed out and may still happen: what is written
        there meanwhile may be overwritten."""

    @property
    @abstractmethod
    def usable(self) -> bool:
        """False once the daemon is known dead or the protocol broken; then connect anew."""

    @abstractmethod
    def stats(self) -> dict[str, int]:
        """Counters; `quarantined` is how many slots wait for a completion that nobody awaits."""

    @abstractmethod
    def close(self, timeout_ms: float) -> None:
        """Deregister and let go of everything; calls in flight end at once."""

    @abstractmethod
    def abandon(self) -> None:
        """In a forked child: close descriptors, ask nobody."""
