"""Checksums of pages and records in Python: by the `crc32c` package where it is, else numpy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.io.crc32c import crc32c_rows
from hicache_backends.segment.format import RECORD, RECORD_BYTES, RECORD_CRC_OFFSET

_GROUP_BYTES = 4 << 20  # transposed in a core's own cache

try:
    import crc32c as _package
except ImportError:
    _fast: Callable[[Any, int], int] | None = None
else:
    _fast = _package.crc32c


def page_checksums(pages: Sequence[Sequence[memoryview]], digests: bytes) -> NDArray[np.uint64]:
    """The checksum (see io/engine.py) of each page, given as its pieces; all of one size."""
    rows = np.frombuffer(digests, np.uint8).reshape(-1, DIGEST_BYTES)
    seeds = crc32c_rows(np.zeros(len(rows), np.uint32), rows)
    if _fast is not None:
        sums = [
            _page_checksum(_fast, pieces, int(s)) for pieces, s in zip(pages, seeds, strict=True)
        ]
        return np.array(sums, np.uint64)
    size = sum(map(len, pages[0])) if pages else 0
    group = max(1, _GROUP_BYTES // max(1, size))
    parts = [
        _group_checksums(pages[i : i + group], seeds[i : i + group], size)
        for i in range(0, len(pages), group)
    ]
    return np.concatenate([np.empty(0, np.uint64), *parts])


def _page_checksum(
    crc32c: Callable[[Any, int], int], pieces: Sequence[memoryview], seed: int
) -> int:
    low = high = seed
    left = sum(map(len, pieces)) // 2
    for piece in pieces:
        low = crc32c(piece[:left], low)
        high = crc32c(piece[left:], high)
        left = max(0, left - len(piece))
    return high << 32 | low


def _group_checksums(
    pages: Sequence[Sequence[memoryview]], seeds: NDArray[np.uint32], size: int
) -> NDArray[np.uint64]:
    data = b"".join(piece for pieces in pages for piece in pieces)
    rows = np.frombuffer(data, np.uint8).reshape(len(pages), size)
    low = crc32c_rows(seeds, rows[:, : size // 2])
    high = crc32c_rows(seeds, rows[:, size // 2 :])
    return high.astype(np.uint64) << np.uint64(32) | low


def seal_records(
    records: bytearray, which: NDArray[np.intp], checksums: NDArray[np.uint64]
) -> None:
    """Fill in checksum and record CRC of the chosen records of a packed array."""
    table = np.frombuffer(records, RECORD)
    table["checksum"][which] = checksums[which]
    table["crc"][which] = _record_crcs(records)[which]


def whole_records(packed: Any) -> NDArray[np.bool_]:
    """Which records of a packed array are in use and have the CRC that they name."""
    table = np.frombuffer(packed, RECORD)
    valid: NDArray[np.bool_] = (table["crc"] == _record_crcs(packed)) & (table["bytes"] != 0)
    return valid


def _record_crcs(packed: Any) -> NDArray[np.uint32]:
    rows = np.frombuffer(packed, np.uint8).reshape(-1, RECORD_BYTES)[:, :RECORD_CRC_OFFSET]
    return crc32c_rows(np.zeros(len(rows), np.uint32), rows)
