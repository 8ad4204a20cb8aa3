"""Which page goes next: the least recently used one without resident children."""

from __future__ import annotations

import time
from array import array
from collections.abc import Container, Iterable

import numpy as np
from numpy.typing import NDArray

from hicache_backends.outcomes import EVICTED, NEVER_WRITTEN, Outcome, Reason, miss
from hicache_backends.segment.lineage import NOBODY, Lineage

_END = -1
_PARKED = -2  # in no list: empty, or passed over because it had children
_CHOSEN = -3  # in no list: a victim whose fate is not settled


class LeafLru:
    """Least recently used first, leaves only; an evicted page hands its recency to its parent.

    Pages lie in a doubly linked list from the oldest to the newest. A page that reaches the old
    end while it has children is parked outside the list; when its last child goes it re-enters
    in that child's place. So every step is O(1), and no page is looked at twice without having
    been used in between.
    """

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._older = array("i")
        self._newer = array("i")
        self._used_ms = array("q")
        self._oldest = self._newest = _END

    def extend(self, count: int) -> None:
        """Room for `count` more slots."""
        self._older.extend(array("i", [_PARKED]) * count)
        self._newer.frombytes(bytes(4 * count))
        self._used_ms.frombytes(bytes(8 * count))

    def add(self, slot: int) -> None:
        """A page arrived, just used."""
        self._lineage.join(slot)
        self.touch((slot,))

    def touch(self, slots: Iterable[int]) -> None:
        """These pages were used now, the last one most recently."""
        now_ms = _now_ms()
        for slot in slots:
            state = self._older[slot]
            if state != _CHOSEN:
                if state != _PARKED:
                    self._unlink(slot)
                self._insert(slot, self._newest)
            self._used_ms[slot] = now_ms

    def idle_ms(self, slot: int) -> int:
        """Milliseconds since the page was last used."""
        return _now_ms() - self._used_ms[slot]

    @property
    def oldest(self) -> int | None:
        """The page that was not used for longest, whether or not it has children."""
        return None if self._oldest == _END else self._oldest

    def victims(self, count: int, pinned: Container[int], idle_ms: int = 0) -> list[int]:
        """The next pages to go, leaves before their parents, none of them `pinned`, up to the
        first that was used less than `idle_ms` ago.

        Each is out of reach of further calls until it is settled by `keep` or `remove`.
        """
        chosen: list[int] = []
        passed: list[int] = []
        used_ms = _now_ms() - idle_ms
        while len(chosen) < count and self._oldest != _END:
            slot = self._oldest
            if idle_ms and self._used_ms[slot] > used_ms:
                break
            self._unlink(slot)
            if self._lineage.children[slot]:
                continue
            if slot in pinned:
                passed.append(slot)
                continue
            self._older[slot] = _CHOSEN
            chosen.append(slot)
            parent = self._lineage.leave(slot)
            if parent != NOBODY and self._older[parent] == _PARKED:
                self._insert(parent, _END)
        for slot in passed:
            self._insert(slot, self._newest)
        return chosen

    def settled(self, slot: int) -> bool:
        """Whether the page is no victim that waits for its fate."""
        return self._older[slot] != _CHOSEN

    def keep(self, slot: int) -> None:
        """A victim stays, as just used."""
        self._lineage.join(slot)
        self._older[slot] = _PARKED
        self.touch((slot,))

    def remove(self, slot: int) -> None:
        """A page, victim or not, is gone."""
        state = self._older[slot]
        if state != _CHOSEN:
            parent = self._lineage.leave(slot)
            if parent != NOBODY and self._older[parent] == _PARKED:
                self._insert(parent, state if state != _PARKED else _END)
            if state != _PARKED:
                self._unlink(slot)
        self._older[slot] = _PARKED

    def load(self, slots: NDArray[np.int32]) -> None:
        """Fill an empty list, the oldest first; the lineage has counted these pages already."""
        if not len(slots):
            return
        older = np.frombuffer(self._older, dtype=np.int32)
        newer = np.frombuffer(self._newer, dtype=np.int32)
        older[slots[1:]], older[slots[0]] = slots[:-1], _END
        newer[slots[:-1]], newer[slots[-1]] = slots[1:], _END
        np.frombuffer(self._used_ms, dtype=np.int64)[slots] = _now_ms()
        self._oldest, self._newest = int(slots[0]), int(slots[-1])

    def _insert(self, slot: int, older: int) -> None:
        """Put a page that is in no list behind `older`; _END makes it the oldest."""
        newer = self._oldest if older == _END else self._newer[older]
        self._older[slot], self._newer[slot] = older, newer
        if older == _END:
            self._oldest = slot
        else:
            self._newer[older] = slot
        if newer == _END:
            self._newest = slot
        else:
            self._older[newer] = slot

    def _unlink(self, slot: int) -> None:
        older, newer = self._older[slot], self._newer[slot]
        if older == _END:
            self._oldest = newer
        else:
            self._newer[older] = newer
        if newer == _END:
            self._newest = older
        else:
            self._older[newer] = older
        self._older[slot] = _PARKED


class Ghosts:
    """The digests evicted last, and why: at least `limit` of them, at most twice as many."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._young: dict[bytes, Reason] = {}
        self._old: dict[bytes, Reason] = {}

    def add(self, digest: bytes, why: Reason = Reason.EVICTED) -> None:
        if len(self._young) >= self._limit:
            self._old, self._young = self._young, {}
        self._young[digest] = why

    def __contains__(self, digest: bytes) -> bool:
        return digest in self._young or digest in self._old

    def miss(self, digest: bytes) -> Outcome:
        """Of a page that is not here."""
        return _GONE[self._young.get(digest) or self._old.get(digest)]


_GONE: dict[Reason | None, Outcome] = {
    None: NEVER_WRITTEN,
    Reason.EVICTED: EVICTED,
    Reason.EXPIRED: miss(Reason.EXPIRED),
}


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
