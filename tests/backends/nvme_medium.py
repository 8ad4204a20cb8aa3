"""A root directory laid open: pages found by reading the index files, with no help of the store."""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.identity import Namespace
from hicache_backends.native_calls import crc32c
from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.storage import PageStorage
from hicache_backends.testing.medium import Medium

SLOT_ALIGNMENT = 4096
RECORD_BYTES = 64
_GENERATION = struct.Struct("<Q")
_TAIL = struct.Struct("<IIII")  # bytes, flags, crc, spare


@dataclass(frozen=True)
class StoredPage:
    """Where a page lies: its record in the index file, its bytes in the data file."""

    digest: bytes
    generation: int
    index: Path
    record_at: int
    data: Path
    at: int
    length: int

    def read(self) -> bytes:
        with self.data.open("rb") as file:
            file.seek(self.at)
            return file.read(self.length)

    def write(self, content: bytes) -> None:
        with self.data.open("r+b") as file:
            file.seek(self.at)
            file.write(content)


def slot_bytes(page_bytes: int) -> int:
    return -(-page_bytes // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def stored_pages(root: Path, namespace: Namespace, slot: int | None = None) -> Iterator[StoredPage]:
    """Every valid record of every store of the namespace below `root`, whose slots have `slot`
    bytes; None: those of a local disk."""
    for index in sorted(root.glob(f"{namespace.fingerprint.hex()}/*/seg-*.index")):
        raw = index.read_bytes()
        for at in range(0, len(raw) - RECORD_BYTES + 1, RECORD_BYTES):
            record = raw[at : at + RECORD_BYTES]
            length, _, crc, _ = _TAIL.unpack(record[48:])
            if not length or crc32c(record[:56]) != crc:
                continue
            each = slot or slot_bytes(namespace.page_bytes)
            yield StoredPage(
                record[:16],
                _GENERATION.unpack(record[32:40])[0],
                index,
                at,
                index.with_suffix(".data"),
                at // RECORD_BYTES * each,
                length,
            )


class NvmeMedium(Medium):
    """One or several roots below a directory; segments of eight slots where capacity is told."""

    def __init__(self, directory: Path, *, roots: int = 1, **options: Any) -> None:
        self.roots = [directory / f"root{i}" for i in range(roots)]
        self.options = options
        for root in self.roots:
            root.mkdir()

    def open(self, namespace: Namespace, *, capacity_pages: int | None = None) -> PageStorage:
        slot = slot_bytes(namespace.page_bytes) + RECORD_BYTES
        limits = {"capacity_bytes": 64 << 20, "segment_bytes": 1 << 20}
        if capacity_pages is not None:
            share = capacity_pages // len(self.roots)
            limits = {"capacity_bytes": share * slot, "segment_bytes": min(8, share) * slot}
        paths = tuple(map(str, self.roots))
        options: dict[str, Any] = {**limits, "free_floor_bytes": 0, **self.options}
        return open_nvme(namespace, NvmeOptions(paths, **options))

    def pages(self, namespace: Namespace) -> dict[bytes, StoredPage]:
        """The stored pages; of two copies the one written last."""
        found = [page for root in self.roots for page in stored_pages(root, namespace)]
        return {page.digest: page for page in sorted(found, key=lambda page: page.generation)}

    def stored(self, namespace: Namespace) -> set[bytes]:
        return {*self.pages(namespace)}

    def flip_bit(self, namespace: Namespace, digest: bytes, bit: int) -> None:
        page = self.pages(namespace)[digest]
        flip_bit(page.data, page.at * 8 + bit)

    def truncate(self, namespace: Namespace, digest: bytes) -> None:
        page = self.pages(namespace)[digest]
        os.truncate(page.data, page.at + page.length // 2)

    def delete(self, namespace: Namespace, digest: bytes) -> None:
        page = self.pages(namespace)[digest]
        page.write(bytes(page.length))

    def swap(self, namespace: Namespace, first: bytes, second: bytes) -> None:
        pages = self.pages(namespace)
        a, b = pages[first].read(), pages[second].read()
        pages[first].write(b)
        pages[second].write(a)


def flip_bit(path: Path, bit: int) -> None:
    """Invert one bit of a file."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        byte = file.read(1)[0]
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
