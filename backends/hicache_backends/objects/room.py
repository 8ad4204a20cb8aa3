"""Room for pages in a store that has a capacity of its own: what goes, and who is asked."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.objects.index import Index
from hicache_backends.objects.lanes import Area, Call, Lanes
from hicache_backends.objects.transfer import Place, Put
from hicache_backends.outcomes import TIMED_OUT, Outcome, Reason, miss
from hicache_backends.storage import Keeper, PageEntry

_NO_SPACE = miss(Reason.NO_SPACE, "every page is in use by this call or kept for others")


class Room:
    """Evicts pages of the index, and talks to the keeper."""

    def __init__(self, place: Place, index: Index, lanes: Lanes) -> None:
        self.keeper: Keeper | None = None
        self._place = place
        self._index = index
        self._lanes = lanes

    def tell_gone(self, entries: Sequence[PageEntry]) -> None:
        """These pages left for another reason than want of room."""
        if entries and self.keeper:
            self.keeper.gone(entries)

    def make(self, put: Put) -> None:
        """Evict for what is to be written; what has no room still is not written."""
        keep = {*put.digests, *put.parents}
        while (excess := self._index.excess()) > 0 and put.rows:
            chosen, idle_ms = self._index.victims(keep)
            if not chosen or put.deadline.passed:
                self._index.settle(chosen, [False] * len(chosen))
                refused, put.rows = put.rows[-excess:], put.rows[:-excess]
                for i in refused:
                    put.outcomes[i] = TIMED_OUT if put.deadline.passed else _NO_SPACE
                self._index.end_writing([put.digests[i] for i in refused])
                return
            gone = [False] * len(chosen)
            try:
                gone = self._evict(chosen, idle_ms, put.deadline)
            finally:
                self._index.settle(chosen, gone)
            keep.update(e.digest for e, away in zip(chosen, gone, strict=True) if not away)

    def _evict(
        self, chosen: Sequence[PageEntry], idle_ms: Sequence[int], deadline: Deadline
    ) -> list[bool]:
        """Which of the victims are gone from the store."""
        allowed: Sequence[bool] = [True] * len(chosen)
        if self.keeper:
            allowed = self.keeper.may_evict(chosen, idle_ms, deadline)
        going = [
            entry.digest
            for entry, may_go in zip(chosen, allowed, strict=True)
            if may_go and self._index.is_leaf(entry)
        ]
        removed = remove_pages(self._place, self._lanes, going, deadline)
        return [bool(removed.get(entry.digest)) for entry in chosen]


def remove_pages(
    place: Place, lanes: Lanes, digests: Sequence[bytes], deadline: Deadline
) -> dict[bytes, Outcome]:
    """What became of each page that could be tried in time."""
    removed: dict[bytes, Outcome] = {}

    def remove(area: Area, call: Call) -> None:
        outcomes = place.store.remove(place.keys(digests), deadline)
        removed.update(zip(digests, outcomes, strict=True))

    if digests:
        lanes.run(remove, deadline)
    return removed
