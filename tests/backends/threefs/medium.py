"""A 3FS mount laid open: a stand-in's backing directory, read and changed behind the mount."""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

from hicache_backends.identity import Namespace
from hicache_backends.testing.medium import Medium
from hicache_backends.threefs.backend import ThreeFsOptions, ThreeFsStorage, open_threefs
from hicache_backends.threefs.geometry import Geometry
from tests.backends.nvme_medium import RECORD_BYTES, StoredPage, flip_bit, stored_pages
from tests.threefs.stand_in import ThreeFs

CHUNK = 64 << 10
_numbers = itertools.count()


class ThreeFsMedium(Medium):
    """A fresh directory on a daemon's mount; segments of eight slots where capacity is told."""

    def __init__(self, fs: ThreeFs, chunk_bytes: int = CHUNK, **options: Any) -> None:
        name = f"medium-{next(_numbers)}"
        self.root = fs.mount / name
        self.backing = fs.backing / name
        self.chunk_bytes = chunk_bytes
        self.options = {"staging_bytes": 8 << 20, "rings": 2, **options}

    def open(
        self, namespace: Namespace, *, capacity_pages: int | None = None, **more: Any
    ) -> ThreeFsStorage:
        slot = self.slot_bytes(namespace) + RECORD_BYTES
        limits = {"capacity_bytes": 64 << 20, "segment_bytes": 1 << 20}
        if capacity_pages is not None:
            limits = {"capacity_bytes": capacity_pages * slot, "segment_bytes": 8 * slot}
        options: dict[str, Any] = {**limits, "free_floor_bytes": 0, **self.options, **more}
        return open_threefs(namespace, ThreeFsOptions(str(self.root), **options))

    def slot_bytes(self, namespace: Namespace) -> int:
        return Geometry(namespace.page_bytes, self.chunk_bytes).slot_bytes

    def pages(self, namespace: Namespace) -> dict[bytes, StoredPage]:
        """The stored pages; of two copies the one written last."""
        while True:
            with contextlib.suppress(FileNotFoundError):  # a store that is empty is just going
                found = [*stored_pages(self.backing, namespace, self.slot_bytes(namespace))]
                found.sort(key=lambda page: page.generation)
                return {page.digest: page for page in found}

    def stored(self, namespace: Namespace) -> set[bytes]:
        return {*self.pages(namespace)}

    def flip_bit(self, namespace: Namespace, digest: bytes, bit: int) -> None:
        page = self.pages(namespace)[digest]
        flip_bit(page.data, page.at * 8 + bit)

    def delete(self, namespace: Namespace, digest: bytes) -> None:
        page = self.pages(namespace)[digest]
        page.write(bytes(page.length))

    def swap(self, namespace: Namespace, first: bytes, second: bytes) -> None:
        pages = self.pages(namespace)
        a, b = pages[first].read(), pages[second].read()
        pages[first].write(b)
        pages[second].write(a)
