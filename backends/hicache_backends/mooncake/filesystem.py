"""Mooncake as an fsspec file system: `fsspec.filesystem("mooncake", master="host:port")`.

Objects have no times, no directories of their own and no order; they can't be empty, appended
to or renamed at once. Names are keys: `mooncake://a/b` is the key `a/b`.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Sequence
from typing import Any

from fsspec.spec import AbstractBufferedFile, AbstractFileSystem

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageClosed
from hicache_backends.mooncake.client import Client, connect, disconnect
from hicache_backends.mooncake.codes import MISSING, outcome_of
from hicache_backends.mooncake.options import find_cluster
from hicache_backends.outcomes import Reason
from hicache_backends.pages import Pages

_LIST_S = 10.0


class MooncakeFileSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """Objects of a Mooncake cluster.

    `master`, `metadata_server`, `local_hostname`, `transport` ("tcp" or "rdma"), `device`,
    `segment_bytes`: as in `Cluster`; what is left out is taken from Mooncake's own variables and
    file. `http`: address of the master's HTTP port, such as "http://host:9003", without which
    nothing can be listed. `timeout_ms`: of each call. Raises ConfigError, MissingExtra,
    StorageUnavailable.
    """

    protocol = "mooncake"
    root_marker = ""

    def __init__(
        self,
        master: str | None = None,
        metadata_server: str | None = None,
        local_hostname: str | None = None,
        transport: str | None = None,
        device: str | None = None,
        segment_bytes: int | None = None,
        http: str | None = None,
        timeout_ms: float = 30_000.0,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        given = {
            "master": master,
            "metadata_server": metadata_server,
            "local_hostname": local_hostname,
            "protocol": transport,
            "device": device,
            "segment_bytes": segment_bytes,
        }
        self._http = http
        self._timeout_ms = timeout_ms
        self._client: Client | None = connect(find_cluster(given))

    @property
    def client(self) -> Client:
        """The process's client of the cluster. Raises StorageClosed."""
        if self._client is None:
            raise StorageClosed("the file system is closed")
        return self._client

    # -- many at once, without copies

    def put_from(self, paths: Sequence[str], pages: Pages) -> list[int]:
        """Store the pieces of each page as one object; 0 or Mooncake's code for each. An object
        that is there keeps its bytes."""
        return self.client.put_from(self._keys(paths), pages, self._deadline())

    def get_into(self, paths: Sequence[str], pages: Pages) -> list[int]:
        """Read each object into the pieces of its page, which are as long together; bytes, or
        Mooncake's code for each."""
        return self.client.get_into(self._keys(paths), pages, self._deadline())

    def exists_many(self, paths: Sequence[str]) -> list[bool]:
        """Whether each object is there."""
        return [code == 1 for code in self.client.exists(self._keys(paths), self._deadline())]

    def register(self, address: int, size: int) -> bool:
        """Make memory known to the transport, as RDMA needs."""
        return self.client.register(address, size)

    def unregister(self, address: int) -> None:
        """Before registered memory goes."""
        self.client.unregister(address)

    # -- as every fsspec file system

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        key = self._strip_protocol(path)
        size = self.client.size(key) if key else MISSING
        if size >= 0:
            return {"name": key, "size": size, "type": "file"}
        if size == MISSING and (not key or (self._http and self._below(key))):
            return {"name": key, "size": 0, "type": "directory"}
        raise self._error(path, size)

    def exists(self, path: str, **options: Any) -> bool:
        key = self._strip_protocol(path)
        return self.exists_many([key]) == [True] or bool(self._http and self._below(key))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        key = self._strip_protocol(path)
        found: dict[str, dict[str, Any]] = {}
        for name in self._below(key):
            rest = name[len(key) + 1 if key else 0 :]
            child = name[: len(name) - len(rest)] + rest.partition("/")[0]
            kind = "directory" if "/" in rest else "file"
            if child not in found:
                size = 0 if kind == "directory" else max(0, self.client.size(name))
                found[child] = {"name": child, "size": size, "type": kind}
        if not found:
            found = {key: self.info(key)}
            if found[key]["type"] == "directory":
                found = {}
        entries = [found[name] for name in sorted(found)]
        return entries if detail else [entry["name"] for entry in entries]

    def find(
        self,
        path: str,
        maxdepth: int | None = None,
        withdirs: bool = False,
        detail: bool = False,
        **options: Any,
    ) -> Any:
        if maxdepth is not None or withdirs:
            return super().find(path, maxdepth, withdirs, detail, **options)
        key = self._strip_protocol(path)
        names = sorted(self._below(key)) or ([key] if self.exists_many([key]) == [True] else [])
        return {name: self.info(name) for name in names} if detail else names

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **options: Any
    ) -> bytes:
        found = self._read([path], [start], [end])[0]
        if isinstance(found, Exception):
            raise found
        return found

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        on_error: str = "return",
        **options: Any,
    ) -> list[Any]:
        first = starts if isinstance(starts, list) else [starts] * len(paths)
        last = ends if isinstance(ends, list) else [ends] * len(paths)
        found = self._read(paths, first, last)
        if on_error == "raise":
            for error in found:
                if isinstance(error, Exception):
                    raise error
        return found

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **options: Any) -> None:
        key = self._strip_protocol(path)
        if not len(value):
            raise ValueError(f"{path}: Mooncake holds no empty objects")
        if mode == "create" and self.exists_many([key]) == [True]:
            raise FileExistsError(path)
        code = self.client.upsert(key, bytes(value))
        if code:
            raise self._error(path, code)

    def rm_file(self, path: str) -> None:
        code = self.client.remove([self._strip_protocol(path)], self._deadline())[0]
        if code:
            raise self._error(path, code)

    def _rm(self, path: str) -> None:
        self.rm_file(path)

    def rm(
        self, path: str | list[str], recursive: bool = False, maxdepth: int | None = None
    ) -> None:
        for each in [path] if isinstance(path, str) else path:
            keys = self.find(each, maxdepth) if recursive else self._keys([each])
            if not keys:
                raise FileNotFoundError(each)
            for key, code in zip(keys, self.client.remove(keys, self._deadline()), strict=True):
                if code:
                    raise self._error(key, code)

    def rmdir(self, path: str) -> None:
        """There are no directories: nothing to do."""

    def created(self, path: str) -> Any:
        raise NotImplementedError("Mooncake keeps no times")

    def modified(self, path: str) -> Any:
        raise NotImplementedError("Mooncake keeps no times")

    def cp_file(self, path1: str, path2: str, **options: Any) -> None:
        self.pipe_file(path2, self.cat_file(path1))

    def close(self) -> None:
        """Let go of the client; calls after this raise StorageClosed."""
        client, self._client = self._client, None
        if client is not None:
            disconnect(client)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> MooncakeFile:
        if mode not in ("rb", "wb", "xb"):
            raise NotImplementedError(f"Mooncake's objects can't be opened as {mode!r}")
        if mode == "xb" and self.exists_many([path]) == [True]:
            raise FileExistsError(path)
        return MooncakeFile(
            self, path, mode, block_size or "default", autocommit, cache_options=cache_options
        )

    def _read(
        self, paths: Sequence[str], starts: Sequence[int | None], ends: Sequence[int | None]
    ) -> list[bytes | Exception]:
        """The ranges of all objects in one batch, each or its error."""
        keys = self._keys(paths)
        sizes = [self.client.size(key) for key in keys]
        found: list[bytes | Exception] = [
            self._error(path, size) for path, size in zip(paths, sizes, strict=True)
        ]
        by_size: dict[int, list[int]] = {}
        for i, size in enumerate(sizes):
            if size > 0:
                by_size.setdefault(size, []).append(i)
        for size, rows in by_size.items():  # the pages of a batch have one size
            memory = [bytearray(size) for _ in rows]
            pages = Pages.from_buffers(memory, writable=True)
            codes = self.client.get_into([keys[i] for i in rows], pages, self._deadline())
            for i, code, data in zip(rows, codes, memory, strict=True):
                whole = code == size
                found[i] = (
                    bytes(data[slice(starts[i], ends[i])]) if whole else self._error(paths[i], code)
                )
        return found

    def _below(self, key: str) -> list[str]:
        """Every key in the folder `key`; all of the cluster's are listed for that."""
        if not self._http:
            raise NotImplementedError(
                "the file system lists nothing: give it http, the address of the master's HTTP port"
            )
        url = f"{self._http.rstrip('/')}/get_all_keys"
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"http is an http:// or https:// address, not {self._http!r}")
        with urllib.request.urlopen(url, timeout=_LIST_S) as reply:  # noqa: S310 - checked above
            names: list[str] = reply.read().decode().split("\n")
        prefix = f"{key}/" if key else ""
        return [name for name in names if name and name.startswith(prefix)]

    def _keys(self, paths: Sequence[str]) -> list[str]:
        return [self._strip_protocol(path) for path in paths]

    def _deadline(self) -> Deadline:
        return Deadline.after_ms(self._timeout_ms)

    def _error(self, path: str, code: int) -> Exception:
        if code == MISSING:
            return FileNotFoundError(path)
        outcome = outcome_of(code, reading=1)
        kind = TimeoutError if outcome.reason is Reason.TIMEOUT else OSError
        return kind(f"{path}: {outcome.detail or code}")


class MooncakeFile(AbstractBufferedFile):  # type: ignore[misc]  # fsspec ships no types
    """One object, read by ranges or written whole when it is closed."""

    def _fetch_range(self, start: int, end: int) -> bytes:
        found: bytes = self.fs.cat_file(self.path, start, end)
        return found

    def _initiate_upload(self) -> None:
        """Nothing is sent before the end."""

    def _upload_chunk(self, final: bool = False) -> bool:
        if final and self.autocommit:
            self.commit()
        return final

    def commit(self) -> None:
        """Store what was written."""
        self.buffer.seek(0)
        self.fs.pipe_file(self.path, self.buffer.read())

    def discard(self) -> None:
        """Store nothing."""
