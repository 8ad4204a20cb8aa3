"""Room for pages in a store that has a capacity of its own: what goes, and who is asked."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.objects.index import Index
from hicache_backends.objects.lanes import Area, Call, Lanes
from hicache_backends.objects.transfer import Place, Put
from hicache_backends.outcomes import TIMED_OUT, Outcome, Reason, miss
from hicache_backends.storage import Keeper, PageEntry

_STEP = 128
_ROUNDS = 4
"""Of a put, for what was there beyond a limit before it came."""
_RESTRICT_MS = 2000.0
_REFUSED = {
    "capacity": miss(Reason.NO_SPACE, "every page is in use by this call or kept for others"),
    "quota": miss(Reason.QUOTA, "at the ordered limit, with pages in use or kept for others"),
}


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
        rounds = 0
        while (excess := self._index.excess()) > 0 and put.rows:
            pages = len(put.rows)
            rounds += excess > pages
            most = min(excess, 2 * pages + _STEP)
            if (
                rounds > _ROUNDS
                or put.deadline.passed
                or not self._turn_out(keep, most, put.deadline, self._cause)
            ):
                known = self._index.pages  # writing these again takes no room
                refused = {*[i for i in put.rows if put.digests[i] not in known][-excess:]}
                put.rows = [i for i in put.rows if i not in refused]
                for i in refused:
                    put.outcomes[i] = TIMED_OUT if put.deadline.passed else _REFUSED[self._cause]
                self._index.end_writing([put.digests[i] for i in refused])
                return

    def restrict(self, limit: int | None, ttl_ms: int | None) -> None:
        """See `PageStorage.restrict`; `limit` in pages."""
        index, deadline = self._index, Deadline.after_ms(_RESTRICT_MS)
        known = [pages for pages in (index.capacity, limit) if pages is not None]
        index.limit = min(known, default=None)
        keep: set[bytes] = set()
        while not deadline.passed:
            excess = index.excess()
            if excess > 0:
                went_on = self._turn_out(keep, min(excess, _STEP), deadline, "quota")
            else:
                went_on = bool(ttl_ms) and self._turn_out(
                    keep, _STEP, deadline, "ttl", idle_ms=ttl_ms or 0
                )
            if not went_on:
                return

    @property
    def _cause(self) -> str:
        return "capacity" if self._index.limit == self._index.capacity else "quota"

    def _turn_out(
        self, keep: set[bytes], count: int, deadline: Deadline, cause: str, *, idle_ms: int = 0
    ) -> bool:
        """Evict so many pages, or learn that they may not be and `keep` them; False if there is
        none."""
        chosen, idle = self._index.victims(keep, count, idle_ms)
        if chosen:
            self._remove(self._released(chosen, idle, deadline, cause), deadline, cause)
        keep.update(entry.digest for entry in chosen if entry.digest in self._index.pages)
        return bool(chosen)

    def _released(
        self, chosen: Sequence[PageEntry], idle_ms: Sequence[int], deadline: Deadline, cause: str
    ) -> list[PageEntry]:
        """The victims that may go; the others are settled, one by one from the tails of chains on,
        so that what comes before a page that stays is seen to have a follower."""
        allowed: Sequence[bool] = [False] * len(chosen)
        going: list[PageEntry] = []
        try:
            if self.keeper:
                allowed = self.keeper.may_evict(chosen, idle_ms, deadline)
            else:
                allowed = [True] * len(chosen)
        finally:
            for entry, may_go in zip(chosen, allowed, strict=True):
                if may_go and self._index.is_leaf(entry):
                    going.append(entry)
                else:
                    self._index.settle([entry], [False], cause)
        return going

    def _remove(self, going: Sequence[PageEntry], deadline: Deadline, cause: str) -> None:
        """Take victims out of the store; those of a late call are settled when it ends."""
        keys = self._place.keys([entry.digest for entry in going])

        def remove(area: Area, call: Call) -> None:
            gone = [False] * len(going)
            try:
                gone = [outcome.ok for outcome in self._place.store.remove(keys, deadline)]
            finally:
                self._index.settle(going, gone, cause)

        def give_up() -> None:
            self._index.settle(going, [False] * len(going), cause)

        if going:
            self._lanes.run(remove, deadline, give_up=give_up)


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
