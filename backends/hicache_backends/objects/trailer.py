"""The 64 bytes behind each page in its object, by which a reader knows what it has read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.native_calls import crc32c

MAGIC = b"HCPG"
VERSION = 1
TRAILER_BYTES = 64
_CRC_OFFSET = 56

TRAILER = np.dtype(
    [
        ("magic", "S4"),
        ("version", "<u2"),
        ("flags", "<u2"),
        ("digest", f"V{DIGEST_BYTES}"),
        ("parent", f"V{DIGEST_BYTES}"),
        ("length", "<u8"),  # of the page, bytes
        ("checksum", "<u8"),  # of the page, see io/engine.py
        ("crc", "<u4"),  # CRC-32C of the 56 bytes before it
        ("spare", "<u4"),
    ]
)


def seal(
    trailers: NDArray[np.void],
    digests: Sequence[bytes],
    parents: Sequence[bytes],
    length: int,
    checksums: NDArray[np.uint64],
) -> None:
    """Fill in the trailers of pages of `length` bytes."""
    rows = np.zeros(len(digests), TRAILER)
    rows["magic"], rows["version"], rows["length"] = MAGIC, VERSION, length
    rows["digest"] = np.frombuffer(b"".join(digests), f"V{DIGEST_BYTES}")
    rows["parent"] = np.frombuffer(b"".join(parents), f"V{DIGEST_BYTES}")
    rows["checksum"] = checksums
    rows["crc"] = _crcs(rows)
    trailers[:] = rows


def fits(
    trailers: NDArray[np.void],
    digests: Sequence[bytes],
    length: int,
    checksums: NDArray[np.uint64],
) -> list[bool]:
    """For each page read: is it the one of this digest, whole and unchanged?

    `checksums`: of the bytes that were read, seeded with the digests.
    """
    rows = trailers.copy()
    right = (rows["magic"] == MAGIC) & (rows["version"] == VERSION) & (rows["length"] == length)
    right &= (rows["checksum"] == checksums) & (rows["crc"] == _crcs(rows))
    names = rows["digest"].tolist()
    return [ok and name == d for ok, name, d in zip(right.tolist(), names, digests, strict=True)]


def _crcs(rows: NDArray[np.void]) -> NDArray[np.uint32]:
    """One C call a row, which keeps the GIL."""
    packed = rows.tobytes()
    starts = range(0, len(packed), TRAILER_BYTES)
    return np.array([crc32c(packed[at : at + _CRC_OFFSET]) for at in starts], np.uint32)
