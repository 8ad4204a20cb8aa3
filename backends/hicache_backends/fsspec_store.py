"""Pages as objects on any fsspec file system, by that file system's own concurrency."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgpack

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, StorageUnavailable
from hicache_backends.fsspec_calls import FileSystemCalls
from hicache_backends.fsspec_files import WholeFiles
from hicache_backends.identity import Namespace
from hicache_backends.io.select import open_engine
from hicache_backends.objects.storage import ObjectOptions, ObjectStorage
from hicache_backends.objects.store import ObjectStore
from hicache_backends.outcomes import (
    BAD_CHECKSUM,
    HIT,
    NEVER_WRITTEN,
    TIMED_OUT,
    Outcome,
    Reason,
    miss,
)
from hicache_backends.pages import Pages

MEDIUM_KEY = ".medium"
_ASK_PUTS = 16
"""So many puts ask first after one that sent pages for nothing."""
_EXISTED = Outcome(True, existed=True)
_FULL = (errno.ENOSPC, errno.EDQUOT)


@dataclass(frozen=True, slots=True)
class FsspecOptions:
    """`url`: where the pages go, such as `s3://bucket/prefix`; `options`: arguments of its file
    system. `concurrency`: objects moved at once. `max_transfer_bytes`: held in memory by one
    call. `capacity_bytes`, `zero_copy`: see `ObjectOptions`."""

    url: str
    options: dict[str, Any] = field(default_factory=dict)
    capacity_bytes: int | None = None
    concurrency: int = 64
    zero_copy: str = "auto"
    max_transfer_bytes: int = 16 << 20


def open_fsspec(
    namespace: Namespace, options: FsspecOptions, *, shared: bool = False
) -> ObjectStorage:
    """The pages of a namespace under a URL.

    Raises ConfigError, MissingExtra, StorageUnavailable, IdentityMismatch.
    """
    if options.concurrency < 1:
        raise ConfigError(f"fsspec.concurrency must be at least 1, not {options.concurrency}")
    store = FsspecStore(options.url, options.options, options.concurrency)
    limits = ObjectOptions(options.capacity_bytes, options.zero_copy, options.max_transfer_bytes)
    return ObjectStorage(namespace, store, limits, shared=shared)


class FsspecStore(ObjectStore):
    """Objects under a URL.

    A file system that has a rename of its own gets its objects whole by it; the others are taken
    to show an object when it is whole, as object stores do.
    """

    def __init__(self, url: str, options: dict[str, Any], concurrency: int = 64) -> None:
        """Raises ConfigError, MissingExtra, StorageUnavailable."""
        self._calls = FileSystemCalls(url, options, concurrency)
        self._fs = self._calls.fs
        protocol = self._fs.protocol
        scheme = protocol if isinstance(protocol, str) else protocol[0]
        self.name = f"{scheme}:{self._calls.root}"
        self._engine = open_engine()
        renames = not self._calls.is_async and self._calls.overrides("mv")
        self._files = WholeFiles(self._fs, self._calls.root) if renames else None
        self._creates = False  # a put that must not overwrite says so: found out when opened
        self._ask = 0

    def medium(self, deadline: Deadline) -> bytes:
        found = self.read(MEDIUM_KEY, deadline)
        if found is None:
            fresh = msgpack.packb({"version": 1, "uuid": uuid.uuid4().bytes})
            self.create(MEDIUM_KEY, fresh, deadline)
            found = self.read(MEDIUM_KEY, deadline)
        try:
            name: Any = msgpack.unpackb(found or b"")["uuid"]
        except (ValueError, KeyError, TypeError, msgpack.UnpackException):
            name = None
        if not isinstance(name, bytes) or len(name) != 16:
            raise StorageUnavailable(f"{self.name}/{MEDIUM_KEY} is not what was written there")
        if self._files:
            self._calls.all([self._files.sweep], deadline)
        if self._calls.is_async:
            create = self._calls.method("pipe_file")
            again = partial(create, f"{self._calls.root}/{MEDIUM_KEY}", found, mode="create")
            self._creates = _is_there(self._calls.all([again], deadline)[0])
        return name

    def get_into(self, keys: Sequence[str], objects: Pages, deadline: Deadline) -> list[Outcome]:
        size, paths = objects.page_bytes, self._paths(keys)
        if not self._calls.is_async and self._calls.overrides("cat_ranges"):
            found = self._fs.cat_ranges(paths, 0, size + 1, on_error="return")
        else:
            cat = self._calls.method("cat_file")
            found = self._calls.all(
                [partial(cat, p, start=0, end=size + 1) for p in paths], deadline
            )
        outcomes = [_outcome(data) if isinstance(data, Exception) else HIT for data in found]
        wrong = [i for i, data in enumerate(found) if outcomes[i].ok and len(data) != size]
        wrong += self._of_another_size(paths, outcomes, size, deadline)
        for i in wrong:
            outcomes[i] = BAD_CHECKSUM
        came = [i for i, outcome in enumerate(outcomes) if outcome.ok]
        source = Pages.from_buffers([found[i] for i in came], writable=False)
        self._engine.copy(source, objects[came])
        return outcomes

    def asks_first(self) -> bool:
        self._ask = max(0, self._ask - 1)
        return self._ask > 0 or not self._creates

    def put_from(self, keys: Sequence[str], objects: Pages, deadline: Deadline) -> list[Outcome]:
        if self._files:
            write: Callable[..., Any] = self._files.write
        else:
            write = self._calls.method("pipe_file")
            write = partial(write, mode="create") if self._creates else write
        calls = [
            partial(write, path, _bytes_of(objects, i)) for i, path in enumerate(self._paths(keys))
        ]
        done = self._calls.all(calls, deadline)
        if any(map(_is_there, done)):
            self._ask = _ASK_PUTS
        return [_EXISTED if _is_there(result) else _outcome(result) for result in done]

    def exists(self, keys: Sequence[str], deadline: Deadline) -> list[bool]:
        ask = self._calls.method("exists")
        found = self._calls.all([partial(ask, path) for path in self._paths(keys)], deadline)
        return [there is True for there in found]

    def remove(self, keys: Sequence[str], deadline: Deadline) -> list[Outcome]:
        remove = self._calls.method("rm_file")
        gone = self._calls.all([partial(remove, path) for path in self._paths(keys)], deadline)
        outcomes = [_outcome(result) for result in gone]
        return [HIT if o.reason is Reason.NEVER_WRITTEN else o for o in outcomes]

    def read(self, key: str, deadline: Deadline) -> bytes | None:
        cat = self._calls.method("cat_file")
        found = self._calls.all([partial(cat, f"{self._calls.root}/{key}")], deadline)[0]
        if isinstance(found, FileNotFoundError):
            return None
        if isinstance(found, Exception):
            raise StorageUnavailable(f"{self.name}: {_told(found)}") from found
        data: bytes = found
        return data

    def create(self, key: str, data: bytes, deadline: Deadline) -> None:
        path = f"{self._calls.root}/{key}"
        if self._files and hasattr(self._fs, "link"):
            call = partial(self._files.write, path, data, exclusive=True)
        else:
            call = partial(self._calls.method("pipe_file"), path, data, mode="create")
        done = self._calls.all([call], deadline)[0]
        if isinstance(done, Exception) and self.read(key, deadline) is None:
            raise StorageUnavailable(f"{self.name}: {_told(done)}") from done

    def close(self) -> None:
        self._calls.close()

    def stats(self) -> dict[str, int | float | str]:
        return {"object_store": self.name, "asynchronous": int(self._calls.is_async)}

    def _paths(self, keys: Sequence[str]) -> list[str]:
        return [f"{self._calls.root}/{key}" for key in keys]

    def _of_another_size(
        self, paths: Sequence[str], outcomes: Sequence[Outcome], size: int, deadline: Deadline
    ) -> list[int]:
        """Of the objects that could not be read those that are there and have another size: some
        stores refuse a range of an object that is cut off."""
        failed = [i for i, outcome in enumerate(outcomes) if outcome.reason is Reason.IO_ERROR]
        info = self._calls.method("info")
        found = self._calls.all([partial(info, paths[i]) for i in failed], deadline)
        return [
            i
            for i, facts in zip(failed, found, strict=True)
            if isinstance(facts, dict) and facts.get("size", size) != size
        ]


def _bytes_of(objects: Pages, row: int) -> bytes:
    pieces = zip(objects.addresses[row].tolist(), objects.sizes[row].tolist(), strict=True)
    return b"".join(ctypes.string_at(address, size) for address, size in pieces)


def _is_there(result: object) -> bool:
    """Whether a put that must not overwrite was refused because the object is there."""
    return isinstance(result, FileExistsError) or (
        isinstance(result, OSError) and "PreconditionFailed" in str(result)
    )


def _outcome(result: object) -> Outcome:
    """What a call's result or exception means for its page."""
    if not isinstance(result, Exception):
        return HIT
    if isinstance(result, FileNotFoundError):
        return NEVER_WRITTEN
    if isinstance(result, TimeoutError | asyncio.TimeoutError):
        return TIMED_OUT
    if isinstance(result, OSError) and result.errno in _FULL:
        return miss(Reason.NO_SPACE, _told(result))
    return miss(Reason.IO_ERROR, _told(result))


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:200]
