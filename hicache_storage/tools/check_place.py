"""What a check says of the place where pages go."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from hicache_backends.errors import ConfigError
from hicache_backends.sizes import format_size
from hicache_storage.config import Config
from hicache_storage.page_store import PageStore
from hicache_storage.tools.roots import explained, open_root

if TYPE_CHECKING:
    from hicache_backends.threefs.backend import ThreeFsStorage

_LOCAL = ("nvme", "memory")


def place(config: Config, store: PageStore) -> str:
    """Where pages go and how, in a few words. Raises StorageUnavailable."""
    stats = store.storage.stats()
    words = [", ".join(config.roots())]
    threefs = _threefs(config, store)
    if threefs:
        words += [f"cluster {_cluster(config.roots()[0])}", *_rings_and_chunks(threefs)]
    else:
        words.append(str(stats.get("object_store", "")))
        words += [f"{k} {stats[k]}" for k in ("transport", "io_engine", "io_mode") if stats.get(k)]
    if capacity := int(stats.get("capacity_bytes", 0)):
        words.append(f"capacity {format_size(capacity)}")
        room = sum(_total_bytes(root) for root in config.roots())
        if 0 < room < capacity:
            words.append(f"which is more than the {format_size(room)} of the file system")
    return ", ".join(word for word in words if word)


def notes(config: Config, store: PageStore) -> Iterator[tuple[str, str]]:
    """What to know though nothing has failed: "warning" or "note", and the text."""
    if config.backend == "mooncake":
        yield from _transport_notes(config, store)
    threefs = _threefs(config, store)
    if threefs is None:
        return
    from hicache_backends.threefs.backend import chunk_advice

    if threefs.fallback:
        yield "warning", f"going through the mount, which is slower: {threefs.fallback}"
    if not threefs.geometry.is_chunked:
        yield "warning", chunk_advice(threefs.geometry)
    if config.three_fs.token is not None:
        yield "note", "3fs.token is not needed: the mount's daemon has authenticated with its own"


def registry_reach(config: Config) -> str:
    """Whom an embedded registry does not reach though they reach the pages; "" if nobody."""
    if config.backend in _LOCAL or not config.global_kvmanager.endpoint.startswith("embedded"):
        return ""
    directory = config.registry_options().embedded_dir
    where = f" in {directory}" if directory else ""
    return (
        f"{where}, for processes of this machine only: other hosts find its pages with a "
        "redis:// or rediss:// endpoint that all share"
    )


def _threefs(config: Config, store: PageStore) -> ThreeFsStorage | None:
    if config.backend != "3fs":
        return None
    from hicache_backends.threefs.backend import ThreeFsStorage

    return store.storage if isinstance(store.storage, ThreeFsStorage) else None


def _transport_notes(config: Config, store: PageStore) -> Iterator[tuple[str, str]]:
    from hicache_storage.tools.objects import cluster_of

    wanted = cluster_of(config).protocol
    if wanted != store.storage.stats()["transport"]:
        yield "warning", f"mooncake.protocol is {wanted}, but this host has no device: TCP runs"


def _rings_and_chunks(storage: ThreeFsStorage) -> Iterator[str]:
    stats, geometry = storage.stats(), storage.geometry
    client = f" (ring client {stats['ring_client']})" if "ring_client" in stats else ""
    yield f"io_engine {stats['io_engine']}{client}"
    chunk, page = format_size(geometry.chunk_bytes), format_size(geometry.page_bytes)
    yield f"chunks of {chunk}"
    if not geometry.is_chunked:
        yield f"pages of {page} share chunks"
    elif geometry.waste:
        yield f"pages of {page} are whole chunks that stay empty by {geometry.waste:.1%}"
    else:
        yield f"pages of {page} are whole chunks"


def _cluster(root: str) -> str:
    with explained(root, "read"), open_root(root).held() as facts:
        return facts.cluster


def _total_bytes(root: str) -> int:
    with explained(root, "used"):
        try:
            return open_root(root).run(lambda: shutil.disk_usage(root).total)
        except ConfigError:  # taken away meanwhile
            return 0
