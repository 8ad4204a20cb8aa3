"""The sections of the backends."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field, SecretStr

from hicache_storage.config.fields import (
    Batch,
    Count,
    Depth,
    Paths,
    PathText,
    Positive,
    Section,
    Size,
    SizeOrZero,
)
from hicache_storage.options import MAX_DEPTH, Mode, StoreOptions

_STORE = StoreOptions()
_ZeroCopy = Annotated[
    Literal["auto", "never"],
    Field(
        description="Move bytes between medium and caller's buffer; never: by way of a staging "
        "buffer, so that a call returns by its deadline even when the medium hangs"
    ),
]


class BackendSection(Section):
    """What every backend section takes."""

    page_size: Count | None = Field(
        default=None, description="Tokens of a page; None: as the engine says"
    )
    prefetch_depth: Depth = Field(
        default=_STORE.prefetch_depth,
        description=f'Chunks of a prefetch in flight, 1 to {MAX_DEPTH}, or "auto" to follow '
        "measured throughput",
    )
    batch_get_size: Batch = Field(
        default=_STORE.batch_get_size, description="Pages of one read call; longer calls are split"
    )
    batch_set_size: Batch = Field(
        default=_STORE.batch_set_size, description="Pages of one write call; longer calls are split"
    )
    timeout_ms: Positive = Field(
        default=_STORE.timeout_ms, description="Deadline of a call that names none, milliseconds"
    )
    mode: Mode = Field(
        default=_STORE.mode, description="What calls may do: off, read or read_write"
    )
    max_read_bytes_per_s: Size | None = Field(
        default=_STORE.max_read_bytes_per_s, description="Cap on reads, per process; None: no cap"
    )
    max_write_bytes_per_s: Size | None = Field(
        default=_STORE.max_write_bytes_per_s, description="Cap on writes, per process; None: no cap"
    )
    max_queued_bytes: Size = Field(
        default=_STORE.max_queued_bytes,
        description="Prefetches waiting beyond this are refused, bytes per process",
    )


class MemorySection(BackendSection):
    """Pages in this process's memory: for tests and for trying things out."""

    capacity: Size | None = Field(
        default=None,
        description="Bytes kept, per process; None: a quarter of the memory it may use",
    )


class TransferSection(BackendSection):
    """What every backend that moves bytes to a medium takes."""

    max_transfer_bytes: Size = Field(default=16 << 20, description="Largest single transfer, bytes")


class SegmentSection(TransferSection):
    """What the backends over segment files take."""

    capacity: Size | None = Field(
        default=None,
        description="Bytes kept in each path, all processes together; None: as before, at first "
        "80 % of what is free",
    )
    free_floor: SizeOrZero | None = Field(
        default=None,
        description="Bytes of the file system left free; None: as before, at first 5 % of its size",
    )
    segment_bytes: Size | None = Field(
        default=None,
        description="Size of one segment file; None: a 64th of the capacity, at most 1 GiB",
    )


class NvmeSection(SegmentSection):
    """Local disks."""

    path: PathText | None = Field(default=None, description="Directory of the store")
    paths: Paths | None = Field(
        default=None,
        min_length=1,
        description='Directories on several drives, instead of path (a list, or "/a:/b")',
    )
    io_engine: Literal["auto", "native", "posix"] = Field(
        default="auto",
        description="native: the C extension; posix: pure Python, slower; auto: as built",
    )
    io_mode: Literal["auto", "direct", "buffered"] = Field(
        default="auto", description="direct: past the page cache; auto: where alignment allows"
    )
    zero_copy: _ZeroCopy = "auto"
    create: bool = Field(default=True, description="Create a missing directory")


class ThreeFsSection(SegmentSection):
    """A 3FS cluster through its mount. Rings and mount stage by themselves."""

    mount_point: PathText | None = Field(default=None, description="Directory on the 3FS mount")
    capacity: Size | None = Field(
        default=None,
        description="Bytes kept, all processes of all hosts together; None: as before, at first "
        "80 % of what is free",
    )
    cluster_id: str | None = Field(
        default=None,
        min_length=1,
        max_length=128,
        description="Name of the cluster; names the medium. None: as the mount calls itself",
    )
    token: SecretStr | None = Field(
        default=None,
        description="Access token; taken, but not needed: the mount's daemon has one of its own",
    )
    token_file: str | None = Field(default=None, description="File that holds the token")
    io_engine: Literal["auto", "usrbio", "fuse"] = Field(
        default="auto",
        description="usrbio: the user-space rings, or fail; fuse: the mount; auto: rings where "
        "they work, else the mount, with a warning",
    )
    ring_client: Literal["auto", "official", "own"] = Field(
        default="auto",
        description="official: the module hf3fs_fuse; own: the C extension; auto: the official "
        "one where it is installed",
    )
    rings: Count = Field(default=4, description="Rings of each direction: calls that run at once")
    staging_bytes: Size = Field(
        default=256 << 20, description="Shared memory of all rings, bytes in /dev/shm per store"
    )


class ObjectSection(TransferSection):
    """What the backends over objects take."""

    zero_copy: _ZeroCopy = "auto"
    capacity: Size | None = Field(
        default=None,
        description="Bytes kept of the pages that this process wrote; None: what the store takes",
    )


class MooncakeSection(ObjectSection):
    """A Mooncake store."""

    max_transfer_bytes: Size = Field(
        default=64 << 20,
        description="Moved at once, and held in memory by a call whose pages can't be moved in "
        "place, bytes",
    )
    master: str | None = Field(
        default=None,
        min_length=1,
        description="host:port of the master; None: MOONCAKE_MASTER, or the file that "
        "MOONCAKE_CONFIG_PATH names, as with the five below",
    )
    metadata_server: str | None = Field(
        default=None, description="Mooncake's metadata server; P2PHANDSHAKE where nothing says"
    )
    local_hostname: str | None = Field(
        default=None, description="Name of this host for its peers; by default its address"
    )
    protocol: Literal["tcp", "rdma"] | None = Field(
        default=None, description="Transport; tcp where nothing says"
    )
    device: str | None = Field(
        default=None, description="RDMA device; chosen by Mooncake where nothing says"
    )
    segment_bytes: SizeOrZero | None = Field(
        default=None, description="Memory given to the cluster; 0, the default: a pure client"
    )
    prefix: str = Field(
        default="hicache", min_length=1, description="Before every key in the cluster"
    )


class FsspecSection(ObjectSection):
    """Any fsspec file system."""

    url: str | None = Field(
        default=None,
        min_length=1,
        repr=False,
        description="Where pages go, such as s3://bucket/prefix",
    )
    options: dict[str, Any] = Field(
        default_factory=dict, repr=False, description="Arguments of the fsspec file system"
    )
    concurrency: Count = Field(default=64, description="Objects moved at once by one call")


class CustomSection(BackendSection):
    """A backend of another distribution; its own keys are checked when it opens."""

    model_config = ConfigDict(extra="allow")


BACKENDS: dict[str, type[BackendSection]] = {
    "3fs": ThreeFsSection,
    "fsspec": FsspecSection,
    "memory": MemorySection,
    "mooncake": MooncakeSection,
    "nvme": NvmeSection,
}
