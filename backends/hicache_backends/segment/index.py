"""The lookup of a store's own pages: digest to slot, and what is known of each slot."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from hicache_backends.segment.lineage import NOBODY, Lineage
from hicache_backends.segment.policy import LeafLru


class PageIndex:
    """Committed pages by digest, in at most 250 bytes a page.

    Not locked: the store calls it under its lock, but for lookups in `slots` and `known`, which
    are atomic.
    A pinned slot is neither a victim nor given out again; a page removed while it is pinned
    gives its slot back at the last `unpin`.
    """

    def __init__(self) -> None:
        self._lineage = Lineage()
        self.policy = LeafLru(self._lineage)
        self.slots = self._lineage.slots
        self.known = self._lineage.known
        self.generation = array("Q")
        self.checksum = array("Q")
        self._pins: dict[int, int] = {}
        self._doomed: set[int] = set()

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def pinned(self) -> int:
        """Slots in use by a call right now."""
        return len(self._pins)

    def extend(self, count: int) -> None:
        """Room for `count` more slots."""
        self._lineage.extend(count)
        self.policy.extend(count)
        self.generation.frombytes(bytes(8 * count))
        self.checksum.frombytes(bytes(8 * count))

    def add(self, slot: int, digest: bytes, parent: bytes, generation: int, checksum: int) -> None:
        """A page was committed: it is visible from now on, and just used."""
        self.generation[slot] = generation
        self.checksum[slot] = checksum
        self._lineage.arrive(slot, digest, parent)
        self.policy.add(slot)

    def remove(self, slot: int) -> bytes:
        """A page is gone; its digest. Its slot is free, or will be when its pins are gone."""
        self.policy.remove(slot)
        if slot in self._pins:
            self._doomed.add(slot)
        return self._lineage.depart(slot)

    def holds(self, slot: int, digest: bytes, generation: int) -> bool:
        """Whether the slot holds this page still."""
        return self.slots.get(digest) == slot and self.generation[slot] == generation

    def page(self, slot: int) -> tuple[bytes, bytes]:
        """Digest and parent of the page in this slot."""
        return self._lineage.digests[slot], self._lineage.parent(slot)

    def learn(self, digest: bytes, parent: bytes) -> None:
        """The parent of a resident page whose parent was unknown."""
        slot = self.slots.get(digest, NOBODY)
        if slot != NOBODY and self.policy.settled(slot) and self._lineage.learn(slot, parent):
            self._lineage.join(slot)

    def has_children(self, slot: int) -> bool:
        return self._lineage.children[slot] > 0

    def is_pinned(self, slot: int) -> bool:
        return slot in self._pins

    def pin(self, slots: Iterable[int]) -> None:
        """These slots are in use until they are unpinned as often."""
        pins = self._pins
        for slot in slots:
            pins[slot] = pins.get(slot, 0) + 1

    def unpin(self, slots: Iterable[int]) -> list[int]:
        """The slots that are free now because their pages left meanwhile."""
        free = []
        pins = self._pins
        for slot in slots:
            pins[slot] -= 1
            if not pins[slot]:
                del pins[slot]
                if slot in self._doomed:
                    self._doomed.remove(slot)
                    free.append(slot)
        return free

    def victims(self, count: int, idle_ms: int = 0) -> list[int]:
        """See `LeafLru.victims`."""
        return self.policy.victims(count, self._pins, idle_ms)

    def load(self, slots: NDArray[np.int32], records: NDArray[np.void]) -> NDArray[np.int32]:
        """Fill an empty index with valid records of slots; of several records of a page the
        highest generation counts. The slots in use."""
        if not len(slots):
            return slots
        order = np.argsort(records["generation"], kind="stable")
        rows = order[self._lineage.load(slots[order], records[order])]
        slots = slots[rows]
        np.frombuffer(self.generation, np.uint64)[slots] = records["generation"][rows]
        np.frombuffer(self.checksum, np.uint64)[slots] = records["checksum"][rows]
        self.policy.load(slots)
        return slots

    def heads_first(self) -> Iterator[int]:
        """The slots of all pages, parents before their children. Pages may come and go
        meanwhile: look whether a slot still holds a page."""
        lineage = self._lineage
        done = bytearray(len(lineage.digests))
        for start in list(lineage.slots.values()):
            slot, chain = start, []
            while 0 <= slot < len(done) and not done[slot]:
                done[slot] = 1
                chain.append(slot)
                slot = lineage.slots.get(lineage.parents[slot], NOBODY)
            yield from reversed(chain)
