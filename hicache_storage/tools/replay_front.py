"""The levels above the store, as a replay sees them: an exact LRU of blocks in front of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence


class Front:
    """Holds at most `capacity` blocks. A chain is touched from its last block to its first, so
    that a block never outlives the blocks before it."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def prefix(self, chain: Sequence[int]) -> int:
        """How many blocks of the chain are held, from its start without a gap."""
        for n, block in enumerate(chain):
            if block not in self._blocks:
                return n
        return len(chain)

    def touch(self, chain: Sequence[int]) -> None:
        """Take in the whole chain; what was used longest ago falls out."""
        for block in reversed(chain):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
            if len(self._blocks) > self._capacity:
                self._blocks.popitem(last=False)
