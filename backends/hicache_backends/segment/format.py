"""The bytes of the segment store on a medium: index record and location, both little endian."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from hicache_backends.identity import DIGEST_BYTES

FORMAT_VERSION = 1
ALIGNMENT = 4096
RECORD_BYTES = 64
RECORD_CRC_OFFSET = 56

RECORD = np.dtype(
    [
        ("digest", f"V{DIGEST_BYTES}"),
        ("parent", f"V{DIGEST_BYTES}"),
        ("generation", "<u8"),
        ("checksum", "<u8"),  # filled by the engine, see io/engine.py
        ("bytes", "<u4"),
        ("flags", "<u4"),
        ("crc", "<u4"),  # CRC-32C of the 56 bytes before it; filled by the engine
        ("spare", "<u4"),
    ]
)
"""One slot's entry in a segment's index file; 64 bytes, all zero for an empty slot."""

_LOCATION = struct.Struct("<16sIIIQQ")
LOCATION_BYTES = _LOCATION.size  # 44


@dataclass(frozen=True, slots=True)
class Location:
    """Where a page lies on its medium; 44 bytes when packed."""

    store: bytes  # uuid, 16 bytes
    segment: int
    slot: int
    length: int
    generation: int
    checksum: int

    def pack(self) -> bytes:
        return _LOCATION.pack(
            self.store, self.segment, self.slot, self.length, self.generation, self.checksum
        )

    @classmethod
    def unpack(cls, packed: bytes) -> Location:
        """Raises ValueError for anything that is not 44 bytes."""
        if len(packed) != LOCATION_BYTES:
            raise ValueError(f"a location has {LOCATION_BYTES} bytes, not {len(packed)}")
        return cls(*_LOCATION.unpack(packed))
