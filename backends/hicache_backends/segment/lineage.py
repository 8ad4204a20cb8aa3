"""Which pages are resident, in which slot, and which of them have resident children."""

from __future__ import annotations

from array import array

import numpy as np
from numpy.typing import NDArray

from hicache_backends.segment.known import Known
from hicache_backends.storage import ROOT, UNKNOWN

NOBODY = -1
_MAX_CLIMB = 1 << 16
_NO_PARENT = np.array([ROOT, UNKNOWN], dtype="V16")


class Lineage:
    """Slot by digest, digest and parent by slot, and the number of resident children.

    Children are counted by the parent's slot where the parent is resident, else by its digest,
    so that pages of a chain may come and go in any order. A page is counted at its parent from
    `join` to `leave`; the links of pages that have joined never form a circle. `load` is the only
    method that touches more than a few pages.
    """

    def __init__(self) -> None:
        self.slots: dict[bytes, int] = {}
        self.known = Known(self.slots)
        self.digests: list[bytes] = []  # b"" where no page is
        self.parents: list[bytes] = []
        self.children = array("i")
        self._orphans: dict[bytes, int] = {}
        self._left: dict[int, bytes] = {}  # parents of pages that have left

    def extend(self, count: int) -> None:
        """Room for `count` more slots."""
        self.digests.extend([b""] * count)
        self.parents.extend([UNKNOWN] * count)
        self.children.frombytes(bytes(4 * count))

    def arrive(self, slot: int, digest: bytes, parent: bytes) -> None:
        """A page is resident from now on; it has not joined its parent yet."""
        self.slots[digest] = slot
        self.known.add(digest)
        self.digests[slot] = digest
        self.children[slot] = self._orphans.pop(digest, 0)
        self.learn(slot, parent)

    def depart(self, slot: int) -> bytes:
        """A page that has left its parent is resident no more; its digest."""
        digest = self.digests[slot]
        del self.slots[digest], self._left[slot]
        self.known.remove(digest)
        if self.children[slot]:
            self._orphans[digest] = self.children[slot]
        self.digests[slot] = b""
        self.children[slot] = 0
        return digest

    def learn(self, slot: int, parent: bytes) -> bool:
        """Note the parent of a page that has not joined; False where it is no news."""
        if parent == UNKNOWN or self.parents[slot] != UNKNOWN:
            return False
        at = self.slots.get(parent, NOBODY)
        # one object a digest, whoever names it, saves 64 bytes a page
        self.parents[slot] = parent if at == NOBODY else self.digests[at]
        return True

    def parent(self, slot: int) -> bytes:
        """The parent of a page, whether or not it has left."""
        return self._left.get(slot, self.parents[slot])

    def join(self, slot: int) -> None:
        """Count the page at its parent. A parent that would close a circle is forgotten: a circle
        has no leaf and could never be evicted."""
        parent = self._left.pop(slot, self.parents[slot])
        self.parents[slot] = UNKNOWN if self._descends(parent, slot) else parent
        self._count(slot, 1)

    def leave(self, slot: int) -> int:
        """Count the page no more. The slot of its parent if no child is left there, or NOBODY."""
        at = self._count(slot, -1)
        self._left[slot], self.parents[slot] = self.parents[slot], UNKNOWN
        return NOBODY if at == NOBODY or self.children[at] else at

    def load(self, slots: NDArray[np.int32], records: NDArray[np.void]) -> NDArray[np.int64]:
        """Fill an empty lineage with valid records of slots, in the order they were written; of
        several records of one page the last counts. The rows that count."""
        digests = records["digest"].tolist()
        self.slots.update(zip(digests, slots.tolist(), strict=True))
        self.known.rebuild()
        rows = np.arange(len(slots))
        if len(self.slots) < len(slots):
            last = [self.slots[d] == s for d, s in zip(digests, slots.tolist(), strict=True)]
            rows = np.flatnonzero(last)
            slots, records = slots[rows], records[rows]
            digests = [digests[row] for row in rows]
        up = _parent_rows(records)
        _cut_circles(up, records)
        named = np.empty(len(slots) + 1, dtype=object)
        named[:-1] = digests
        self.digests[:] = _scattered(slots, named[:-1], len(self.digests), b"")
        parents = named[up]
        for row in np.flatnonzero(up == NOBODY).tolist():
            parents[row] = self._absent(records["parent"][row].item())
        self.parents[:] = _scattered(slots, parents, len(self.parents), UNKNOWN)
        counts = np.frombuffer(self.children, dtype=np.int32)
        counts[slots] = np.bincount(up[up != NOBODY], minlength=len(slots))
        return rows

    def _absent(self, parent: bytes) -> bytes:
        """Count a child of a parent that is not resident; one object for that parent."""
        if parent in (ROOT, UNKNOWN):
            return ROOT if parent == ROOT else UNKNOWN
        self._orphans[parent] = self._orphans.get(parent, 0) + 1
        return parent

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


def _parent_rows(records: NDArray[np.void]) -> NDArray[np.int64]:
    """For each record the row of its parent's record, or NOBODY."""
    digests, parents = _words(records["digest"]), _words(records["parent"])
    rows = np.arange(len(records)) - 1  # most pages were written right after their parents
    differs = (digests[rows] != parents).any(axis=1)
    differs[:1] = True  # there is nothing before the first
    elsewhere = np.flatnonzero(differs)
    rows[elsewhere] = NOBODY
    named = elsewhere[(parents[elsewhere] != _words(_NO_PARENT)[:, None]).any(axis=2).all(axis=0)]
    named = named[np.argsort(parents[named, 0])]
    order = np.argsort(digests[:, 0])
    at = np.searchsorted(digests[order, 0], parents[named, 0])
    found = order[np.minimum(at, len(order) - 1)]
    right = (digests[found] == parents[named]).all(axis=1)
    rows[named[right]] = found[right]
    return rows


def _words(names: NDArray[np.void]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(names).view(np.uint64).reshape(-1, 2)


def _cut_circles(up: NDArray[np.int64], records: NDArray[np.void]) -> None:
    """Make each parent unknown that closes a circle. `up`: the row of each page's parent.

    A circle has a page whose parent was written after it, which is rare: only those are climbed.
    """
    for row in np.flatnonzero(up >= np.arange(len(up))).tolist():
        above, steps = int(up[row]), 0
        while above not in (NOBODY, row) and steps < _MAX_CLIMB:
            above, steps = int(up[above]), steps + 1
        if above != NOBODY:
            up[row] = NOBODY
            records["parent"][row] = UNKNOWN


def _scattered(
    slots: NDArray[np.int32], items: NDArray[np.object_], count: int, rest: bytes
) -> list[bytes]:
    """A list of `count` items: `items` at `slots`, `rest` elsewhere."""
    column = np.empty(count, dtype=object)
    column[:] = [rest] * count  # numpy's fill would strip the zeros that UNKNOWN ends in
    column[slots] = items
    result: list[bytes] = column.tolist()
    return result
