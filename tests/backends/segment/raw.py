"""Raw access to what a segment store wrote, past the store."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hicache_backends.identity import Namespace
from hicache_backends.native_calls import valid_records
from hicache_backends.nvme import NvmeOptions, NvmeStorage, open_nvme
from hicache_backends.segment.format import RECORD, RECORD_BYTES
from hicache_backends.segment.segment import slot_bytes, stored_bytes
from hicache_backends.storage import PageStorage
from hicache_backends.testing.medium import Medium

ROOMY_PAGES = 1024


@dataclass(frozen=True)
class Spot:
    """Where a committed page lies."""

    data: Path
    offset: int
    index: Path
    record_offset: int


def committed(root: Path, namespace: Namespace) -> dict[bytes, Spot]:
    """Every committed page of a namespace on a root; of two copies the newer."""
    found: dict[bytes, tuple[int, Spot]] = {}
    for index in sorted((root / namespace.fingerprint.hex()).glob("*/seg-*.index")):
        packed = index.read_bytes()
        records = np.frombuffer(packed, RECORD)
        for slot in np.flatnonzero(valid_records(packed)).tolist():
            digest = records[slot]["digest"].item()
            generation = int(records[slot]["generation"])
            if generation >= found.get(digest, (0, None))[0]:
                spot = Spot(
                    index.with_suffix(".data"),
                    slot * slot_bytes(namespace.page_bytes),
                    index,
                    slot * RECORD_BYTES,
                )
                found[digest] = (generation, spot)
    return {digest: spot for digest, (_, spot) in found.items()}


class SegmentMedium(Medium):
    """A directory for the segment store."""

    def __init__(self, root: Path, options: NvmeOptions | None = None) -> None:
        self.root = root
        self.options = options or NvmeOptions(paths=(str(root),), free_floor_bytes=0)

    def open(self, namespace: Namespace, *, capacity_pages: int | None = None) -> PageStorage:
        return self.open_nvme(namespace, capacity_pages or ROOMY_PAGES)

    def open_nvme(self, namespace: Namespace, capacity_pages: int) -> NvmeStorage:
        capacity = stored_bytes(capacity_pages, namespace.page_bytes)
        return open_nvme(namespace, replace(self.options, capacity_bytes=capacity))

    def stored(self, namespace: Namespace) -> set[bytes]:
        return {*committed(self.root, namespace)}

    def flip_bit(self, namespace: Namespace, digest: bytes, bit: int) -> None:
        spot = committed(self.root, namespace)[digest]
        with spot.data.open("r+b") as file:
            file.seek(spot.offset + bit // 8)
            byte = file.read(1)[0]
            file.seek(spot.offset + bit // 8)
            file.write(bytes([byte ^ 1 << bit % 8]))

    def truncate(self, namespace: Namespace, digest: bytes) -> None:
        spot = committed(self.root, namespace)[digest]
        with spot.data.open("r+b") as file:
            file.truncate(spot.offset + namespace.page_bytes // 2)

    def swap(self, namespace: Namespace, first: bytes, second: bytes) -> None:
        a, b = (committed(self.root, namespace)[digest] for digest in (first, second))
        contents = [_read(spot, namespace.page_bytes) for spot in (a, b)]
        _write(a, contents[1])
        _write(b, contents[0])


def _read(spot: Spot, count: int) -> bytes:
    with spot.data.open("rb") as file:
        file.seek(spot.offset)
        return file.read(count)


def _write(spot: Spot, content: bytes) -> None:
    with spot.data.open("r+b") as file:
        file.seek(spot.offset)
        file.write(content)
