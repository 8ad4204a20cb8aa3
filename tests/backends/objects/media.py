"""Media of object stores, laid open by a second hand: whoever reaches the store reaches it all."""

from __future__ import annotations

from collections.abc import Callable

from hicache_backends.deadline import Deadline
from hicache_backends.fsspec_store import FsspecStore
from hicache_backends.identity import Namespace
from hicache_backends.objects.storage import ObjectOptions, ObjectStorage
from hicache_backends.objects.store import ObjectStore
from hicache_backends.pages import Pages
from hicache_backends.storage import PageStorage
from hicache_backends.testing.medium import Medium


def soon() -> Deadline:
    return Deadline.after_ms(20_000)


def key(namespace: Namespace, digest: bytes) -> str:
    name = digest.hex()
    return f"{namespace.fingerprint.hex()}/{name[:2]}/{name}"


class ObjectMedium(Medium):
    """`connect` makes another client of the store. `bound`: a store gets its capacity, which
    counts its own pages alone, so that nothing may be there before it is opened."""

    def __init__(
        self, connect: Callable[[], ObjectStore], *, bound: bool = False, shared: bool = False
    ) -> None:
        self.connect = connect
        self.bounded = bound
        self.persistent = not bound and not shared
        self.shared = shared
        self.raw = connect()

    def open(self, namespace: Namespace, *, capacity_pages: int | None = None) -> PageStorage:
        capacity = None
        if self.bounded and capacity_pages:
            capacity = capacity_pages * namespace.page_bytes
        options = ObjectOptions(capacity, batch_bytes=16 * namespace.page_bytes)
        return ObjectStorage(namespace, self.connect(), options, shared=self.shared)

    def close(self) -> None:
        self.raw.close()

    def flip_bit(self, namespace: Namespace, digest: bytes, bit: int) -> None:
        data = bytearray(self.read(namespace, digest))
        data[bit // 8] ^= 1 << bit % 8
        self.write(namespace, digest, data)

    def truncate(self, namespace: Namespace, digest: bytes) -> None:
        data = self.read(namespace, digest)
        self.write(namespace, digest, data[: len(data) // 2])

    def delete(self, namespace: Namespace, digest: bytes) -> None:
        assert all(self.raw.remove([key(namespace, digest)], soon()))

    def swap(self, namespace: Namespace, first: bytes, second: bytes) -> None:
        a, b = self.read(namespace, first), self.read(namespace, second)
        self.write(namespace, first, b)
        self.write(namespace, second, a)

    def read(self, namespace: Namespace, digest: bytes) -> bytes:
        data = self.raw.read(key(namespace, digest), soon())
        assert data is not None
        return data

    def write(self, namespace: Namespace, digest: bytes, data: bytes | bytearray) -> None:
        self.delete(namespace, digest)
        pages = Pages.from_buffers([data], writable=False)
        assert all(self.raw.put_from([key(namespace, digest)], pages, soon()))


class FsspecMedium(ObjectMedium):
    """One whose file system lists what there is."""

    def __init__(
        self,
        url: str,
        *,
        bound: bool = False,
        shared: bool = False,
        options: dict[str, object] | None = None,
    ) -> None:
        options = options or {}
        super().__init__(lambda: FsspecStore(url, options), bound=bound, shared=shared)
        self.url, self.options = url, options

    def stored(self, namespace: Namespace) -> set[bytes]:
        import fsspec

        fs, root = fsspec.url_to_fs(self.url, use_listings_cache=False, **self.options)
        found = fs.find(f"{root}/{namespace.fingerprint.hex()}")
        names = [path.rpartition("/")[2] for path in found]
        return {bytes.fromhex(name) for name in names if name != "namespace.msgpack"}

    def close(self) -> None:
        super().close()
        import fsspec

        fs, root = fsspec.url_to_fs(self.url, use_listings_cache=False, **self.options)
        if fs.exists(root):
            fs.rm(root, recursive=True)
