"""The registry, the stores and the pages that registry figures are taken with."""

from __future__ import annotations

import os
import socket
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import redis

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.segment.format import Location
from hicache_backends.storage import ROOT, PageEntry
from hicache_storage.page_store import PageStore
from hicache_storage.tools.tool_store import open_tool_store
from kvmanager.connect import connect_registry
from kvmanager.embedded import EmbeddedValkey
from kvmanager.model import Member
from kvmanager.options import RegistryOptions
from kvmanager.registry import Registry

PAGE_BYTES = 4096
TIMEOUT_MS = 10_000.0
OPTIONS = RegistryOptions(timeout_ms=10_000, touch_interval_ms=3_600_000)
"""No call is cut short, and looking the same pages up again writes no access times."""


def bench_namespace() -> Namespace:
    """The namespace of pages that exist for the registry's figures alone."""
    return Namespace("registry-bench", "1", "uint8", "block", 512, PAGE_BYTES, tenant="bench")


@contextmanager
def loopback_valkey() -> Iterator[str]:
    """A fresh server on a loopback TCP port, as a `redis://` endpoint."""
    with (
        tempfile.TemporaryDirectory(prefix="hicache-bench-") as directory,
        EmbeddedValkey.acquire(Path(directory, "valkey")) as valkey,
        redis.Redis.from_url(valkey.url) as client,
    ):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        client.config_set("bind", "127.0.0.1")
        client.config_set("port", port)
        yield f"redis://127.0.0.1:{port}"


def used_bytes(endpoint: str) -> int:
    """Memory that the server says it uses."""
    with redis.Redis.from_url(endpoint) as client:
        return int(client.info("memory")["used_memory"])


def open_bench_store(endpoint: str, root: Path) -> PageStore:
    """A page store of this process, of a few pages, on the shared medium at `root`."""
    store, _ = open_tool_store(
        bench_namespace(), _options(root), endpoint=endpoint, registry_options=OPTIONS
    )
    return store


@contextmanager
def publisher(endpoint: str, root: Path) -> Iterator[tuple[Registry, bytes]]:
    """The session and the uuid of a store on the shared medium at `root`."""
    storage = open_nvme(bench_namespace(), _options(root), shared=True)
    store, medium = storage.stores[0]
    try:
        with session(endpoint, store, medium) as registry:
            yield registry, store
    finally:
        storage.close()


def _options(root: Path) -> NvmeOptions:
    return NvmeOptions(paths=(str(root),), capacity_bytes=256 << 20)


@contextmanager
def session(endpoint: str, store: bytes, medium: bytes) -> Iterator[Registry]:
    """A session as a process with this store."""
    member = Member(uuid.uuid4().bytes, socket.gethostname(), "bench", store, medium)
    registry = connect_registry(endpoint, bench_namespace(), member, options=OPTIONS)
    registry.start(lambda _orders: None)
    try:
        yield registry
    finally:
        registry.close()


def entries(digests: Sequence[bytes], parents: Sequence[bytes], store: bytes) -> list[PageEntry]:
    """Entries whose locations look as a segment store's do."""
    return [
        PageEntry(digest, parent, Location(store, n >> 12, n & 4095, PAGE_BYTES, n, n).pack())
        for n, (digest, parent) in enumerate(zip(digests, parents, strict=True))
    ]


def random_entries(pages: int, store: bytes) -> list[PageEntry]:
    """One chain of pages that nothing else has."""
    raw = os.urandom(16 * pages)
    digests = [raw[at : at + 16] for at in range(0, len(raw), 16)]
    return entries(digests, [ROOT, *digests[:-1]], store)


def store_batch(registry: Registry, batch: Sequence[PageEntry]) -> None:
    """Claim and publish pages as a put does."""
    deadline = Deadline.after_ms(TIMEOUT_MS)
    token, _ = registry.claim([entry.digest for entry in batch], deadline)
    registry.publish(batch, token, deadline)
