"""Which pages are resident, in which slot, and which of them have resident children."""

from __future__ import annotations

from array import array
from collections import Counter
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hicache_backends.storage import ROOT, UNKNOWN

NOBODY = -1
_MAX_CLIMB = 1 << 16


class Lineage:
    """Slot by digest, digest and parent by slot, and the number of resident children.

    Children are counted by the parent's slot where the parent is resident, else by its digest,
    so that pages of a chain may come and go in any order. A page is counted at its parent from
    `join` to `leave`. No method touches more than a few pages, but for `load`.
    """

    def __init__(self) -> None:
        self.slots: dict[bytes, int] = {}
        self.digests: list[bytes] = []  # b"" where no page is
        self.parents: list[bytes] = []
        self.children = array("i")
        self._orphans: dict[bytes, int] = {}

    def extend(self, count: int) -> None:
        """Room for `count` more slots."""
        self.digests.extend([b""] * count)
        self.parents.extend([UNKNOWN] * count)
        self.children.frombytes(bytes(4 * count))

    def arrive(self, slot: int, digest: bytes, parent: bytes) -> None:
        """A page is resident from now on; it has not joined its parent yet."""
        self.slots[digest] = slot
        self.digests[slot] = digest
        self.children[slot] = self._orphans.pop(digest, 0)
        self.learn(slot, parent)

    def depart(self, slot: int) -> bytes:
        """A page that has left its parent is resident no more; its digest."""
        digest = self.digests[slot]
        del self.slots[digest]
        if self.children[slot]:
            self._orphans[digest] = self.children[slot]
        self.digests[slot] = b""
        self.parents[slot] = UNKNOWN
        self.children[slot] = 0
        return digest

    def learn(self, slot: int, parent: bytes) -> bool:
        """Note the parent of a page that has not joined. False where it is no news, or would
        close a circle: a circle has no leaf and could never be evicted."""
        if parent == UNKNOWN or self.parents[slot] != UNKNOWN or self._descends(parent, slot):
            return False
        at = self.slots.get(parent, NOBODY)
        # one object a digest, whoever names it, saves 64 bytes a page
        self.parents[slot] = parent if at == NOBODY else self.digests[at]
        return True

    def parent_slot(self, slot: int) -> int:
        """The slot of the page's parent, or NOBODY."""
        return self.slots.get(self.parents[slot], NOBODY)

    def join(self, slot: int) -> None:
        """Count the page at its parent."""
        self._count(slot, 1)

    def leave(self, slot: int) -> int:
        """Count the page no more. The slot of its parent if no child is left there, or NOBODY."""
        at = self._count(slot, -1)
        return NOBODY if at == NOBODY or self.children[at] else at

    def load(self, slots: NDArray[np.int32], digests: list[bytes], parents: list[bytes]) -> None:
        """Fill an empty lineage with pages in the order they were written. `slots` and `digests`
        are distinct."""
        self.slots.update(zip(digests, slots.tolist(), strict=True))
        at = list(map(self.slots.get, parents, repeat(NOBODY)))
        _cut_circles(slots, at, parents, len(self.digests))
        self.digests[:] = _scattered(slots, digests, len(self.digests), b"")
        known = self.digests
        named = [p if s == NOBODY else known[s] for p, s in zip(parents, at, strict=True)]
        self.parents[:] = _scattered(slots, named, len(self.parents), UNKNOWN)
        absent = (p for p, s in zip(parents, at, strict=True) if s == NOBODY)
        self._orphans.update(Counter(p for p in absent if p not in (ROOT, UNKNOWN)))
        resident = np.array(at, dtype=np.int64)
        counts = np.bincount(resident[resident != NOBODY], minlength=len(self.children))
        np.frombuffer(self.children, dtype=np.int32)[:] = counts

    def _count(self, slot: int, change: int) -> int:
        parent = self.parents[slot]
        at = self.slots.get(parent, NOBODY)
        if at != NOBODY:
            self.children[at] += change
        elif parent not in (ROOT, UNKNOWN):
            left = self._orphans.get(parent, 0) + change
            if left:
                self._orphans[parent] = left
            else:
                del self._orphans[parent]
        return at

    def _descends(self, digest: bytes, slot: int) -> bool:
        """Whether the page `digest` is the one in `slot` or comes after it."""
        ancestor = self.digests[slot]
        while digest != ancestor and self.children[slot]:
            at = self.slots.get(digest, NOBODY)
            if at == NOBODY:
                return False
            digest = self.parents[at]
        return digest == ancestor


def _cut_circles(slots: NDArray[np.int32], at: list[int], parents: list[bytes], count: int) -> None:
    """Forget each parent that closes a circle. `at`: the slot of each page's parent.

    A circle has a page whose parent was written after it, which is rare: only those are climbed.
    """
    row_of = np.full(count + 1, NOBODY, dtype=np.int32)  # the last one for NOBODY itself
    row_of[slots] = np.arange(len(slots), dtype=np.int32)
    up = row_of[np.array(at, dtype=np.int64)]
    for row in np.flatnonzero(up >= np.arange(len(slots))).tolist():
        above, steps = int(up[row]), 0
        while above not in (NOBODY, row) and steps < _MAX_CLIMB:
            above, steps = int(up[above]), steps + 1
        if above != NOBODY:
            up[row] = at[row] = NOBODY
            parents[row] = UNKNOWN


def _scattered(slots: NDArray[np.int32], items: list[Any], count: int, rest: object) -> list[Any]:
    """A list of `count` items: `items` at `slots`, `rest` elsewhere."""
    column = np.full(count, rest, dtype=object)
    boxed = np.empty(len(items), dtype=object)
    boxed[:] = items
    column[slots] = boxed
    result: list[Any] = column.tolist()
    return result
