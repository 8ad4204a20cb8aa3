"""The backend `mooncake`: pages as objects of a Mooncake cluster."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, MissingExtra, StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.mooncake.codes import (
    INVALID,
    MISSING,
    NO_MASTER,
    NO_SPACE,
    NOT_READY,
    TRANSFER_FAILED,
    outcome_of,
)
from hicache_backends.objects.storage import ObjectOptions, ObjectStorage
from hicache_backends.objects.store import ObjectStore
from hicache_backends.outcomes import HIT, Outcome, Reason, miss
from hicache_backends.pages import Pages

if TYPE_CHECKING:
    from hicache_backends.mooncake.filesystem import MooncakeFileSystem

_EVICTION_S = 0.05
_BEING_WRITTEN_S = 0.02
_WORTH_AN_EXCHANGE = 256 << 10
_NOT_THERE = (MISSING, NOT_READY)  # one that is still being written is not there yet
_MASTER_LOST = outcome_of(NO_MASTER)
_EVICTED_AT_ONCE = miss(Reason.NO_SPACE, "evicted as soon as it was stored")


@dataclass(frozen=True, slots=True)
class MooncakeOptions:
    """`master` to `segment_bytes`: see `Cluster`; None: as Mooncake's own variables and file say.
    `prefix`: before every key. `max_transfer_bytes`: held in memory by one call. `capacity_bytes`,
    `zero_copy`: see `ObjectOptions`."""

    master: str | None = None
    metadata_server: str | None = None
    local_hostname: str | None = None
    protocol: str | None = None
    device: str | None = None
    segment_bytes: int | None = None
    prefix: str = "hicache"
    capacity_bytes: int | None = None
    zero_copy: str = "auto"
    max_transfer_bytes: int = 64 << 20


def open_mooncake(
    namespace: Namespace, options: MooncakeOptions, *, shared: bool = False
) -> ObjectStorage:
    """The pages of a namespace in a Mooncake cluster.

    Raises ConfigError, MissingExtra, StorageUnavailable, IdentityMismatch.
    """
    if not options.prefix.strip("/"):
        raise ConfigError("mooncake.prefix must not be empty: clearing removes keys by it")
    try:
        from hicache_backends.mooncake.filesystem import MooncakeFileSystem
    except ImportError as error:
        raise MissingExtra("the backend 'mooncake'", "mooncake") from error
    fs = MooncakeFileSystem(
        options.master,
        options.metadata_server,
        options.local_hostname,
        options.protocol,
        options.device,
        options.segment_bytes,
        skip_instance_cache=True,
    )
    limits = ObjectOptions(options.capacity_bytes, options.zero_copy, options.max_transfer_bytes)
    store = MooncakeStore(fs, options.prefix.strip("/"))
    return ObjectStorage(namespace, store, limits, shared=shared)


class MooncakeStore(ObjectStore):
    """Objects of a cluster whose keys begin with a prefix. The cluster is the medium; it evicts."""

    def __init__(self, fs: MooncakeFileSystem, prefix: str) -> None:
        """`fs` is closed with this store."""
        self._fs = fs
        self._client = fs.client
        self._prefix = prefix
        self._rdma = fs.client.cluster.transport == "rdma"
        self.name = f"mooncake://{fs.client.cluster.master}/{prefix}"

    def medium(self, deadline: Deadline) -> bytes:
        """Made of the master's address: an object that says so could be evicted."""
        return hashlib.blake2b(self.name.encode(), digest_size=16).digest()

    def get_into(self, keys: Sequence[str], objects: Pages, deadline: Deadline) -> list[Outcome]:
        names, size = self._names(keys), objects.page_bytes
        codes = self._client.get_into(names, objects, deadline)
        if objects.pieces > 1:  # then one of another length fails like one whose holder is silent
            for i, code in enumerate(codes):
                if code == TRANSFER_FAILED and self._client.size(names[i]) not in (size, code):
                    codes[i] = INVALID
        return [outcome_of(code, reading=size) for code in codes]

    def put_from(self, keys: Sequence[str], objects: Pages, deadline: Deadline) -> list[Outcome]:
        names = self._names(keys)
        codes = self._client.put_from(names, objects, deadline)
        full = [i for i, code in enumerate(codes) if code == NO_SPACE]
        if full and deadline.remaining_ms() > _EVICTION_S * 2000:
            time.sleep(_EVICTION_S)  # eviction goes on behind the call that found no room
            again = self._client.put_from([names[i] for i in full], objects[full], deadline)
            for i, code in zip(full, again, strict=True):
                codes[i] = code
        outcomes = [outcome_of(code) for code in codes]
        stored = [i for i, outcome in enumerate(outcomes) if outcome.ok]
        there = self._client.exists([names[i] for i in stored], deadline)
        for i, found in zip(stored, there, strict=True):
            if found != 1:
                outcomes[i] = self._unreadable(names[i]) if found == 0 else outcome_of(found)
        return outcomes

    def _unreadable(self, name: str) -> Outcome:
        """Why an object that was just put can't be read."""
        code = self._client.size(name)
        return _EVICTED_AT_ONCE if code == MISSING else outcome_of(code)

    def exists(self, keys: Sequence[str], deadline: Deadline) -> list[bool]:
        return [code == 1 for code in self._client.exists(self._names(keys), deadline)]

    def remove(self, keys: Sequence[str], deadline: Deadline) -> list[Outcome]:
        codes = self._client.remove(self._names(keys), deadline)
        return [HIT if code in _NOT_THERE else outcome_of(code) for code in codes]

    def read(self, key: str, deadline: Deadline) -> bytes | None:
        name, seen = self._names([key])[0], self._client.replaced
        code, data = self._read(name, deadline)
        if code == NO_MASTER and self._client.renew(seen, deadline) and not deadline.passed:
            code, data = self._read(name, deadline)
        if code > 0 and code == len(data):
            return data
        if code in _NOT_THERE:
            return None
        raise StorageUnavailable(f"{self.name}: {outcome_of(code, reading=1).detail}")

    def _read(self, name: str, deadline: Deadline) -> tuple[int, bytes]:
        code = size = self._client.size(name)
        memory = bytearray(max(0, size))
        if size > 0:
            pages = Pages.from_buffers([memory], writable=True)
            code = self._client.get_into([name], pages, deadline)[0]
        return code, bytes(memory)

    def create(self, key: str, data: bytes, deadline: Deadline) -> None:
        """One that another process is writing is waited for, and written here if that one dies
        and Mooncake gives its object up."""
        pages, seen = Pages.from_buffers([data], writable=False), self._client.replaced
        outcome = self.put_from([key], pages, deadline)[0]
        if outcome == _MASTER_LOST and self._client.renew(seen, deadline):
            outcome = self.put_from([key], pages, deadline)[0]
        while outcome.reason is Reason.BEING_WRITTEN and not deadline.passed:
            time.sleep(_BEING_WRITTEN_S)
            again = self.put_from([key], pages, deadline)[0]
            outcome = outcome if again.reason is Reason.TIMEOUT else again
        if not outcome.ok:
            raise StorageUnavailable(f"{self.name}: {outcome.detail}")

    def close(self) -> None:
        self._fs.close()

    def register(self, address: int, size: int) -> bool:
        return self._client.register(address, size)

    def unregister(self, address: int) -> None:
        self._client.unregister(address)

    def reaches(self, pages: Pages) -> bool:
        """Over TCP each piece, the trailer too, is an exchange of its own: for small pieces a copy
        into one costs less."""
        large = pages.page_bytes >= _WORTH_AN_EXCHANGE * pages.pieces
        return (self._rdma or large) and self._client.reaches(pages)

    def stats(self) -> dict[str, int | float | str]:
        cluster = self._client.cluster
        return {
            "object_store": self.name,
            "transport": cluster.transport,
            "clients_replaced": self._client.replaced,
        }

    def _names(self, keys: Sequence[str]) -> list[str]:
        return [f"{self._prefix}/{key}" for key in keys]
