"""Which pages go, and when: for want of slots, by order of a limit, or unused for too long."""

from __future__ import annotations

from hicache_backends.deadline import Deadline
from hicache_backends.outcomes import Reason
from hicache_backends.segment.state import PageName, StoreState
from hicache_backends.segment.tolls import Tolls

_ROUNDS = 8
_STEP = 128
_TRIM_MS = 500.0
"""Of one heartbeat, for what orders take."""


class Evictor:
    """Takes pages out of a store once the keeper has agreed."""

    def __init__(self, state: StoreState) -> None:
        self._state = state
        self._limit_pages: int | None = None
        self._ttl_ms: int | None = None
        self.tolls = Tolls()

    def evict(
        self, count: int, cause: str, deadline: Deadline, *, idle_ms: int = 0, wipe: bool = False
    ) -> tuple[int, int]:
        """Ask for `count` pages to go, of those that were not used for `idle_ms`; how many went,
        and how many stay. With `wipe` a later process does not find them either."""
        gone, stay = self._turn_out(count, cause, deadline, idle_ms, wipe)
        return len(gone), stay

    def _turn_out(
        self, count: int, cause: str, deadline: Deadline, idle_ms: int = 0, wipe: bool = False
    ) -> tuple[list[PageName], int]:
        """As `evict`: which pages went."""
        state = self._state
        with state.lock:
            pages = [state.name(slot) for slot in state.index.victims(count, idle_ms)]
            idle = [state.index.policy.idle_ms(page.slot) for page in pages]
            asks = state.keeper is not None and bool(pages)
            entries = [state.entry(page.slot) for page in pages] if asks else []
        may_go: list[bool] = [not asks] * len(pages)
        gone: list[PageName] = []
        try:
            if state.keeper and asks:
                may_go = list(state.keeper.may_evict(entries, idle, deadline))
        finally:
            with state.lock:
                gone = self._settle(pages, may_go, cause, wipe)
            if wipe and gone:
                slots = [page.slot for page in gone]
                state.wipe(slots, deadline)
                state.unpin(slots)
            state.give_back(deadline)
        return gone, len(pages) - len(gone)

    def restrict(self, limit_bytes: int | None, ttl_ms: int | None, deadline: Deadline) -> None:
        """See `PageStorage.restrict`."""
        page_bytes = self._state.page_bytes
        self._limit_pages = None if limit_bytes is None else max(0, limit_bytes) // page_bytes
        self._ttl_ms = ttl_ms
        until = Deadline.after_ms(min(deadline.remaining_ms(), _TRIM_MS))
        stays = 0
        while not until.passed and stays < _ROUNDS:
            went, kept = self._step(until)
            if not went and not kept:
                return
            stays = 0 if went else stays + 1

    def room_for(self, pages: int, deadline: Deadline) -> tuple[int, list[int]]:
        """How many of so many new pages the limit leaves room for, when others have gone, and the
        slots of these: `StoreState.wipe_free` is for those that the new pages do not take. The
        caller has noted the new ones as being written."""
        slots: list[int] = []
        if self._limit_pages is None:
            return pages, slots
        for _ in range(_ROUNDS):
            excess = self._excess()
            if excess <= 0 or deadline.passed:
                break
            gone, stay = self._turn_out(min(excess, 2 * pages + _STEP), "quota", deadline)
            if not gone and not stay:
                break
            slots += [page.slot for page in gone]
        return max(0, pages - max(0, self._excess())), slots

    def _step(self, deadline: Deadline) -> tuple[int, int]:
        excess = self._excess()
        if excess > 0:
            return self.evict(min(excess, _STEP), "quota", deadline, wipe=True)
        if self._ttl_ms is None:
            return 0, 0
        return self.evict(_STEP, "ttl", deadline, idle_ms=max(1, self._ttl_ms), wipe=True)

    def _excess(self) -> int:
        """Pages beyond the limit, those being written counted."""
        if self._limit_pages is None:
            return 0
        return len(self._state.index) + len(self._state.writing) - self._limit_pages

    def _settle(
        self, pages: list[PageName], may_go: list[bool], cause: str, pinned: bool
    ) -> list[PageName]:
        """Keep or evict victims, under the lock; those that went, `pinned` or free."""
        state, index = self._state, self._state.index
        verdicts = [(p, may) for p, may in zip(pages, may_go, strict=True) if state.holds(p)]
        for page, may in verdicts:
            if not may:
                index.policy.keep(page.slot)
        gone = []
        for page, may in verdicts:
            # a child was kept, or came meanwhile, or is being written
            if may and (index.has_children(page.slot) or index.is_pinned(page.slot)):
                index.policy.keep(page.slot)
            elif may:
                self.tolls.count(cause, index.policy.idle_ms(page.slot))
                if pinned:
                    index.pin((page.slot,))
                state.ghosts.add(index.remove(page.slot), _WHY.get(cause, Reason.EVICTED))
                gone.append(page)
        state.counts["evicted"] += len(gone)
        if not pinned:
            state.free([page.slot for page in gone])
        return gone


_WHY = {"ttl": Reason.EXPIRED}
