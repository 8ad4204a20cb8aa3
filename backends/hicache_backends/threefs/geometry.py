"""How pages and segments are fitted to the chunks of a 3FS directory."""

from __future__ import annotations

from dataclasses import dataclass

from hicache_backends.segment.format import ALIGNMENT, RECORD_BYTES

_MOST_WASTE = 1 / 8
_MIN_BLOCK_BYTES = 256 << 10
MAX_BLOCK_BYTES = 4 << 20
"""3FS moves at most this much of a chunk well in one I/O."""


@dataclass(frozen=True, slots=True)
class Geometry:
    """Of the pages of one namespace in chunks of `chunk_bytes`.

    A slot is whole chunks where that wastes at most an eighth: then no page shares a chunk with
    another, and a page is written as whole chunks, which 3FS need not read and copy first.
    Otherwise slots are multiples of 4 KiB, and pages share chunks.
    """

    page_bytes: int
    chunk_bytes: int

    @property
    def whole_bytes(self) -> int:
        """The page, rounded up to chunks."""
        return _round_up(self.page_bytes, self.chunk_bytes)

    @property
    def waste(self) -> float:
        """Which share of the chunks a page would leave empty."""
        return 1 - self.page_bytes / self.whole_bytes

    @property
    def is_chunked(self) -> bool:
        """Whether slots are whole chunks."""
        return self.waste <= _MOST_WASTE

    @property
    def slot_bytes(self) -> int:
        """From one slot to the next."""
        return self.whole_bytes if self.is_chunked else _round_up(self.page_bytes, ALIGNMENT)

    @property
    def padded_bytes(self) -> int:
        """What a page is written as; 0: as it is."""
        return self.slot_bytes if self.is_chunked and self.slot_bytes != self.page_bytes else 0

    def block_bytes(self, most: int = MAX_BLOCK_BYTES) -> int:
        """Bytes of one I/O of a ring: a slot where that is neither tiny nor too large."""
        most = max(ALIGNMENT, min(most, MAX_BLOCK_BYTES) // ALIGNMENT * ALIGNMENT)
        if self.slot_bytes > most and self.chunk_bytes <= most:
            return most // self.chunk_bytes * self.chunk_bytes
        return min(most, max(_round_up(self.slot_bytes, ALIGNMENT), _MIN_BLOCK_BYTES))

    def max_slots(self, block_bytes: int) -> int:
        """Of a segment, so that its index is one chunk, and one write."""
        return min(self.chunk_bytes, block_bytes) // RECORD_BYTES


def _round_up(count: int, unit: int) -> int:
    return -(-count // unit) * unit
