"""Slots for new pages: free ones, a new segment, or those of pages that may go."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.segment.state import PageName, StoreState

_ROUNDS = 16
_MAX_VICTIMS = 1024


class Space:
    """Finds slots for the pages of a put."""

    def __init__(self, state: StoreState, segment_bytes: int | None) -> None:
        self._state = state
        self._segment_bytes = segment_bytes

    def take(self, digests: Sequence[bytes], deadline: Deadline) -> list[int]:
        """A slot for each page, on its home root if that has any. Fewer, the last pages without,
        where the rest is in use, kept for others, or not to be had by the deadline. The slots
        belong to the caller."""
        homes = [self._state.home(digest) for digest in digests]
        pools: list[list[int]] = [[] for _ in self._state.volumes]
        refused = 0
        for _ in range(_ROUNDS):
            with self._state.lock:
                self._pop_free(homes, pools)
            missing = len(digests) - sum(map(len, pools))
            if not missing or deadline.passed:
                break
            if self._grow(deadline):
                continue
            if all(volume.blocked or volume.failed for volume in self._state.volumes):
                break  # what is evicted now would be lost for nothing
            evicted, kept = self._evict(min(max(missing, 2 * refused), _MAX_VICTIMS))
            refused += kept
            if not evicted and not kept:
                break
        return _dealt(homes, pools)

    def _pop_free(self, homes: Sequence[int], pools: list[list[int]]) -> None:
        """Move free slots to the pools: to each what its pages need, then whatever there is."""
        missing = len(homes) - sum(map(len, pools))
        healthy = [volume for volume in self._state.volumes if not volume.failed]
        wanted = Counter(homes)
        for anywhere in (False, True):
            for volume in healthy:
                pool = pools[volume.number]
                more = missing if anywhere else wanted[volume.number] - len(pool)
                count = max(0, min(more, missing, len(volume.free)))
                start = len(volume.free) - count
                pool.extend(volume.free[start:])
                del volume.free[start:]
                missing -= count

    def _grow(self, deadline: Deadline) -> bool:
        """A new segment on each root that has room; whether there was one."""
        for volume in self._state.volumes:
            if volume.deleted:
                self._state.forget_volume(volume)
                volume.revive(deadline)
        grown = [volume.grow(self._segment_bytes, deadline) for volume in self._state.volumes]
        for segment in grown:
            if segment:
                with self._state.lock:
                    first = self._state.add_segment(segment)
                    slots = range(first, first + segment.slots)
                    self._state.volumes[segment.volume].free.extend(reversed(slots))
        return any(grown)

    def _evict(self, count: int) -> tuple[int, int]:
        """Ask for `count` pages to go; how many went, and how many stay."""
        state = self._state
        with state.lock:
            pages = [state.name(slot) for slot in state.index.victims(count)]
            asks = state.keeper is not None and bool(pages)
            entries = [state.entry(page.slot) for page in pages] if asks else []
            idle_ms = [state.index.policy.idle_ms(page.slot) for page in pages] if asks else []
        may_go: list[bool] = [not asks] * len(pages)
        try:
            if state.keeper and asks:
                may_go = list(state.keeper.may_evict(entries, idle_ms))
        finally:
            with state.lock:
                went = self._settle(pages, may_go)
        return went, len(pages) - went

    def _settle(self, pages: list[PageName], may_go: list[bool]) -> int:
        """Keep or evict victims, under the lock; how many went."""
        state, index = self._state, self._state.index
        verdicts = [(p, may) for p, may in zip(pages, may_go, strict=True) if state.holds(p)]
        for page, may in verdicts:
            if not may:
                index.policy.keep(page.slot)
        free = []
        for page, may in verdicts:
            if may and index.has_children(page.slot):  # one of them was kept, or came meanwhile
                index.policy.keep(page.slot)
            elif may:
                state.ghosts.add(index.remove(page.slot))
                state.counts["evicted"] += 1
                if not index.is_pinned(page.slot):
                    free.append(page.slot)
        state.free(free)
        return len(free)


def _dealt(homes: Sequence[int], pools: list[list[int]]) -> list[int]:
    """A slot for each page until there are no more; neighbours in the batch get neighbours."""
    for pool in pools:
        pool.sort(reverse=True)
    slots: list[int] = []
    for home in homes:
        pool = pools[home] or next(filter(None, pools), [])
        if not pool:
            break
        slots.append(pool.pop())
    return slots
