"""Slots for new pages: free ones, a new segment, or those of pages that may go."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.segment.eviction import Evictor
from hicache_backends.segment.state import StoreState
from hicache_backends.segment.volume import Volume

_ROUNDS = 16
_MAX_VICTIMS = 1024


class Space:
    """Finds slots for the pages of a put."""

    def __init__(self, state: StoreState, evictor: Evictor, segment_bytes: int | None) -> None:
        self._state = state
        self._evictor = evictor
        self._segment_bytes = segment_bytes

    def take(self, digests: Sequence[bytes], deadline: Deadline) -> tuple[list[int], int]:
        """A slot for each page, on its home root if that has any, and for how many the ordered
        limit had room. Fewer, the last pages without, where the rest is in use, kept for others,
        beyond the limit, or not to be had by the deadline. The slots belong to the caller."""
        room, turned_out = self._evictor.room_for(len(digests), deadline)
        digests = digests[:room]
        homes = [self._state.home(digest) for digest in digests]
        wanted = Counter(homes)
        pools: list[list[int]] = [[] for _ in self._state.volumes]
        refused = rounds = 0
        while rounds < _ROUNDS and not deadline.passed:
            self._drop_dead(pools)
            short = self._fill(pools, wanted)
            if not short:
                break
            if self._grow(short, deadline):
                continue
            missing = self._borrow(pools, len(homes))
            if not missing:
                break
            if self._grow(self._state.volumes, deadline):
                continue
            if all(map(self._is_blocked, self._state.volumes)) or self._state.filing.in_doubt():
                break  # what is evicted now would be lost for nothing
            victims = max(missing, 2 * refused, self._gulp())
            evicted, kept = self._evictor.evict(min(victims, _MAX_VICTIMS), "capacity", deadline)
            refused += kept
            rounds += 1
            if not evicted and not kept:
                break
        self._drop_dead(pools)
        # on another root, or more than were needed
        self._state.wipe_free([*{*turned_out}.difference(*pools)], deadline)
        return _dealt(homes, pools), len(digests)

    def _gulp(self) -> int:
        """Pages to evict at once where that gives no slots but room for a segment: a quarter of
        one, or there would be many tiny ones."""
        if not self._state.has_sealed:
            return 0
        return max(v.segment_slots(self._segment_bytes) for v in self._state.volumes) // 4

    def _drop_dead(self, pools: list[list[int]]) -> None:
        """Leave out slots of segments that were given up since they were taken."""
        dead, place = self._state.dead, self._state.table.place
        if dead:
            pools[:] = [[slot for slot in pool if place(slot)[0] not in dead] for pool in pools]

    def _fill(self, pools: list[list[int]], wanted: Mapping[int, int]) -> list[Volume]:
        """Move free slots of the home roots to the pools; the roots that had too few."""
        room = sum(wanted.values()) - sum(map(len, pools))
        short = []
        with self._state.lock:
            for number, pages in wanted.items():
                volume = self._state.volumes[number]
                room -= self._move(volume, pools[number], min(pages - len(pools[number]), room))
                if len(pools[number]) < pages and room:
                    short.append(volume)
        return short

    def _borrow(self, pools: list[list[int]], pages: int) -> int:
        """Take what is still missing from any root that works; how many pages go without."""
        missing = pages - sum(map(len, pools))
        with self._state.lock:
            for volume in self._state.volumes:
                missing -= self._move(volume, pools[volume.number], missing)
        return missing

    @staticmethod
    def _is_blocked(volume: Volume) -> bool:
        return volume.blocked or bool(volume.failed)

    def _move(self, volume: Volume, pool: list[int], most: int) -> int:
        count = 0 if volume.failed else max(0, min(most, len(volume.free)))
        if count and (doubtful := self._state.filing.in_doubt()):
            place = self._state.table.place
            kept = [slot for slot in volume.free if place(slot)[0] in doubtful]
            usable = [slot for slot in volume.free if place(slot)[0] not in doubtful]
            volume.free = array("i", kept + usable)
            count = min(count, len(usable))
        start = len(volume.free) - count
        pool.extend(volume.free[start:])
        del volume.free[start:]
        return count

    def _grow(self, volumes: Iterable[Volume], deadline: Deadline) -> bool:
        """A new segment on each of these roots that has room; whether there was one."""
        return sum(self._extend(volume, deadline) for volume in volumes) > 0

    def _extend(self, volume: Volume, deadline: Deadline) -> bool:
        if volume.failed and not volume.deleted:
            return False
        try:
            return self._state.filing.run(lambda: self._make_segment(volume, deadline), deadline)
        except TimeoutError:
            return False  # a later call finds the segment

    def _make_segment(self, volume: Volume, deadline: Deadline) -> bool:
        if not volume.growing.acquire(timeout=deadline.remaining_ms() / 1000):
            return False
        try:
            if volume.deleted:
                for lost in self._state.segments_of(volume):
                    self._state.forget_segment(lost)
                volume.revive(deadline)
            segment = volume.grow(self._segment_bytes, deadline)
            if volume.is_to_yield:
                self._yield(volume)
            if segment:
                with self._state.lock:
                    first = self._state.add_segment(segment)
                    slots = range(first, first + segment.slots)
                    volume.free.extend(reversed(slots))
            return segment is not None
        finally:
            volume.growing.release()

    def _yield(self, volume: Volume) -> None:
        """Give up the segment with the page that is next to go, for stores without their share."""
        volume.is_to_yield = False
        segment = self._state.oldest_segment(volume)
        if segment:
            pages = self._state.forget_segment(segment)
            self._evictor.tolls.add("space", pages)
            volume.give_up(segment)
            self._state.counts["segments_given_up"] += 1


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
