"""Pages as objects, seen from outside: what lies under a URL or in a Mooncake cluster."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgpack

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.identity import Namespace
from hicache_backends.objects.store import ObjectStore
from hicache_backends.table import build_options
from hicache_storage.config import Config

if TYPE_CHECKING:
    from hicache_backends.mooncake.options import Cluster

HTTP_PORT = "MOONCAKE_MASTER_METRICS_PORT"
"""Mooncake's own variable; what it lists comes by that port."""
_DEFAULT_HTTP_PORT = "9003"
_NAMESPACE = "namespace.msgpack"
_PAGE = re.compile(r"([0-9a-f]{64})/([0-9a-f]{2})/(\2[0-9a-f]{30})")
_CALL_MS = 30_000.0
_AT_ONCE = 1024


@dataclass(frozen=True)
class ObjectNamespace:
    """The objects of one namespace. `namespace`: None where its readable form is missing or
    damaged; `pages`: their keys."""

    fingerprint: str
    namespace: Namespace | None
    pages: tuple[str, ...]

    @property
    def page_bytes(self) -> int:
        """Of all pages, without their trailers; 0 where that is unknown."""
        return len(self.pages) * self.namespace.page_bytes if self.namespace else 0

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        known = dataclasses.asdict(self.namespace) if self.namespace else None
        counted = {"pages": len(self.pages), "page_bytes": self.page_bytes}
        return {"fingerprint": self.fingerprint, "namespace": known, **counted}


@dataclass(frozen=True)
class ObjectReport:
    """What lies on a medium of objects. `foreign`: keys that are nobody's here."""

    name: str
    namespaces: tuple[ObjectNamespace, ...]
    foreign: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return {
            "root": self.name,
            "kind": "objects",
            "namespaces": [found.to_json() for found in self.namespaces],
            "foreign": list(self.foreign),
        }


class ObjectMedium:
    """The objects of a configuration. Every method raises StorageUnavailable."""

    def __init__(self, store: ObjectStore, fs: Any, root: str, to_list: str) -> None:
        """`to_list`: what to do where `fs` lists nothing."""
        self.store = store
        self._to_list = to_list
        self._fs = fs
        self._root = root.rstrip("/")

    def keys(self) -> list[str]:
        """Every key, relative to the place; only where the store lists."""
        try:
            found = self._fs.find(self._root)
        except FileNotFoundError:
            return []
        except Exception as error:  # each library has a tree of its own
            raise StorageUnavailable(
                f"{self.store.name} cannot be listed ({error}): {self._to_list}"
            ) from error
        return [str(name).removeprefix(f"{self._root}/") for name in found]

    def read(self) -> ObjectReport:
        """What lies there."""
        pages: dict[str, list[str]] = {}
        foreign = []
        for key in self.keys():
            folder, _, rest = key.partition("/")
            if rest == _NAMESPACE and len(folder) == 64:
                pages.setdefault(folder, [])
            elif _PAGE.fullmatch(key):
                pages.setdefault(folder, []).append(key)
            elif key != ".medium":
                foreign.append(key)
        found = tuple(
            ObjectNamespace(name, self._readable(name), tuple(keys))
            for name, keys in sorted(pages.items())
        )
        return ObjectReport(self.store.name, found, tuple(foreign))

    def remove(self, keys: Sequence[str]) -> int:
        """Remove objects by key; how many are gone."""
        gone = 0
        for start in range(0, len(keys), _AT_ONCE):
            part = keys[start : start + _AT_ONCE]
            gone += sum(o.ok for o in self.store.remove(part, later()))
        return gone

    def remove_namespace(self, fingerprint: str, pages: Sequence[str]) -> int:
        """Remove these pages of a namespace and its readable form; how many pages are gone."""
        gone = self.remove(pages)
        if not self.remove([f"{fingerprint}/{_NAMESPACE}"]):
            return gone
        with contextlib.suppress(Exception):  # where there are folders at all, the empty ones
            for folder in self._fs.ls(f"{self._root}/{fingerprint}", detail=False):
                self._fs.rmdir(folder)
            self._fs.rmdir(f"{self._root}/{fingerprint}")
        return gone

    def _readable(self, fingerprint: str) -> Namespace | None:
        key = f"{fingerprint}/{_NAMESPACE}"
        packed = self.store.read(key, later())
        try:
            namespace = Namespace.decode(packed or b"")
        except (ValueError, TypeError, msgpack.UnpackException):
            return None
        return namespace if namespace.fingerprint.hex() == fingerprint else None


def later() -> Deadline:
    """When a call of a tool has to end."""
    return Deadline.after_ms(_CALL_MS)


def is_objects(config: Config) -> bool:
    """Whether the configured backend keeps pages as objects."""
    return config.backend in ("fsspec", "mooncake")


@contextlib.contextmanager
def object_medium(config: Config) -> Iterator[ObjectMedium]:
    """The configured medium. Raises ConfigError, MissingExtra, StorageUnavailable."""
    medium = _mooncake(config) if config.backend == "mooncake" else _fsspec(config)
    try:
        yield medium
    finally:
        medium.store.close()


def read_objects(config: Config) -> ObjectReport:
    """What lies on the configured medium. Raises as `object_medium` and its methods."""
    with object_medium(config) as medium:
        return medium.read()


def cluster_of(config: Config) -> Cluster:
    """The configured Mooncake cluster, Mooncake's own variables and file included."""
    from hicache_backends.mooncake.options import Cluster, find_cluster

    names = [field.name for field in dataclasses.fields(Cluster)]
    return find_cluster({name: getattr(config.mooncake, name) for name in names})


def _fsspec(config: Config) -> ObjectMedium:
    from hicache_backends.fsspec_calls import FileSystemCalls
    from hicache_backends.fsspec_store import FsspecOptions, FsspecStore

    options = build_options(FsspecOptions, config.storage_options(), "fsspec")
    store = FsspecStore(options.url, options.options, options.concurrency)
    calls = FileSystemCalls(options.url, options.options, options.concurrency)
    calls.close()
    return ObjectMedium(store, calls.fs, calls.root, "let these credentials list it")


def _mooncake(config: Config) -> ObjectMedium:
    from hicache_backends.mooncake.backend import MooncakeStore
    from hicache_backends.mooncake.filesystem import MooncakeFileSystem

    cluster, prefix = cluster_of(config), config.mooncake.prefix.strip("/")
    host = cluster.master.rpartition(":")[0]
    fs = MooncakeFileSystem(
        cluster.master,
        cluster.metadata_server,
        cluster.local_hostname or None,
        cluster.protocol,
        cluster.device,
        segment_bytes=0,  # what a tool would give to the cluster goes with it
        http=f"http://{host}:{os.environ.get(HTTP_PORT, _DEFAULT_HTTP_PORT)}",
        skip_instance_cache=True,
    )
    return ObjectMedium(
        MooncakeStore(fs, prefix),
        fs,
        prefix,
        f"set {HTTP_PORT} to the master's HTTP port, its --metrics_port",
    )
