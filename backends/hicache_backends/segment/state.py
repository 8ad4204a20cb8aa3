"""What the parts of a store share: its pages, its roots, its files, and the lock over them."""

from __future__ import annotations

import contextlib
import threading
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_backends.io.engine import Engine
from hicache_backends.segment.filing import Filing
from hicache_backends.segment.format import Location
from hicache_backends.segment.index import PageIndex
from hicache_backends.segment.policy import Ghosts
from hicache_backends.segment.segment import Segment, SegmentTable
from hicache_backends.segment.volume import Volume
from hicache_backends.storage import Keeper, PageEntry

_GHOSTS = 65536
_CHUNK = 1024
_GIVE_BACK_MS = 100.0


@dataclass(frozen=True, slots=True)
class PageName:
    """A page in a slot at one moment: the slot holds it still if the generation is the same."""

    slot: int
    digest: bytes
    generation: int


@dataclass
class StoreState:
    """`lock` guards `index`, the volumes' free slots, `dirty`, `writing` and `generation`; no
    I/O, no call to the keeper and no waiting happens under it.

    `dirty[slot]`: its record on the medium may be other than zeros. `writing`: digests that a
    put in flight is storing. `dead`: segments whose files are gone, and whose slots are used no
    more. `generation`: the next one. `lost_roots`: why roots could not be opened, one text each.
    """

    namespace: Namespace
    engine: Engine
    filing: Filing
    direct: bool  # use O_DIRECT where it works
    volumes: list[Volume] = field(default_factory=list)
    index: PageIndex = field(default_factory=PageIndex)
    table: SegmentTable = field(default_factory=SegmentTable)
    lock: threading.Lock = field(default_factory=threading.Lock)
    dirty: bytearray = field(default_factory=bytearray)
    writing: set[bytes] = field(default_factory=set)
    ghosts: Ghosts = field(default_factory=lambda: Ghosts(_GHOSTS))
    counts: Counter[str] = field(default_factory=Counter)
    dead: set[Segment] = field(default_factory=set)
    generation: int = 0
    lost_roots: tuple[str, ...] = ()
    spent: list[int] = field(default_factory=list)
    _left: dict[Segment, int] = field(default_factory=dict)
    keeper: Keeper | None = None

    def __post_init__(self) -> None:
        self.page_bytes = self.namespace.page_bytes
        self.slot_bytes = self.filing.slot_bytes
        self.files = self.filing.descriptors()

    @property
    def any_failed(self) -> bool:
        """Whether one of the roots is given up."""
        return any(volume.failed for volume in self.volumes)

    def add_segment(self, segment: Segment) -> int:
        """Take a segment in; its slots are neither free nor used. Its first slot."""
        first = self.table.add(segment)
        self.index.extend(segment.slots)
        self.dirty.extend(bytes(segment.slots))
        return first

    def home(self, digest: bytes) -> int:
        """The number of the root that this page belongs on while that works."""
        healthy = [v.number for v in self.volumes if not v.failed] or [0]
        return healthy[int.from_bytes(digest[:8], "little") % len(healthy)]

    def volume_of(self, slot: int) -> Volume:
        return self.volumes[self.table.place(slot)[0].volume]

    def location(self, slot: int) -> bytes:
        """Where the page in this slot is, for others."""
        segment, within = self.table.place(slot)
        return Location(
            segment.store,
            segment.number,
            within,
            self.page_bytes,
            self.index.generation[slot],
            self.index.checksum[slot],
        ).pack()

    def entry(self, slot: int) -> PageEntry:
        """The page in this slot as the keeper knows it."""
        digest, parent = self.index.page(slot)
        return PageEntry(digest, parent, self.location(slot))

    def name(self, slot: int) -> PageName:
        return PageName(slot, self.index.page(slot)[0], self.index.generation[slot])

    def holds(self, page: PageName) -> bool:
        return self.index.holds(page.slot, page.digest, page.generation)

    def unpin(self, slots: Iterable[int]) -> None:
        """End the use of these slots; those whose pages left meanwhile are free."""
        with self.lock:
            self.free(self.index.unpin(slots))
        self.give_back(Deadline.after_ms(_GIVE_BACK_MS))

    def free(self, slots: Sequence[int]) -> None:
        """No page is in these slots any more; under the lock."""
        for slot in sorted(slots, reverse=True):
            segment, _ = self.table.place(slot)
            if segment.sealed:
                self.spent.append(slot)
            elif segment not in self.dead:
                self.volumes[segment.volume].free.append(slot)

    def wipe_free(self, slots: Sequence[int], deadline: Deadline) -> None:
        """Clear the records of those of these slots that nobody has taken."""
        if not slots:
            return
        left: list[int] = []
        with self.lock:
            for volume in self.volumes:
                free = np.array(volume.free, np.int32)  # there may be millions
                found = np.isin(free, slots)
                if found.any():
                    volume.free = array("i", free[~found].tobytes())
                    left += free[found].tolist()
        if left:
            try:
                self.wipe(left, deadline)
            finally:
                with self.lock:
                    self.free(left)

    def seal(self, segment: Segment, pages: int) -> None:
        """A segment with so many pages was taken over."""
        self._left[segment] = pages
        self.volumes[segment.volume].store.adopted_pages += pages

    @property
    def has_sealed(self) -> bool:
        """Whether pages lie in segments whose slots are not used again."""
        return bool(self._left)

    def give_back(self, deadline: Deadline) -> None:
        """Give the space of spent slots back, and delete sealed segments that are empty; where the
        file system hangs, what is not done by the deadline is done later, or not at all."""
        if not self.spent:
            return
        with self.lock:
            slots, self.spent = self.spent, []
            places: dict[Segment, list[int]] = {}
            for slot in slots:
                segment, within = self.table.place(slot)
                if segment not in self.dead:
                    places.setdefault(segment, []).append(within)
                    self._left[segment] -= 1
                    self.volumes[segment.volume].store.adopted_pages -= 1
                    self.volumes[segment.volume].reconsider()
            empty = [segment for segment in places if not self._left[segment]]
            for segment in empty:  # no other call finds it empty, too
                del self._left[segment], places[segment]
            directories = {segment.directory for segment in self._left}
        for segment, withins in places.items():
            with contextlib.suppress(OSError):  # then a later process finds a page that is bad
                self.filing.spend(segment, sorted(withins), deadline)
        for segment in empty:
            self.forget_segment(segment)
            with contextlib.suppress(OSError):
                self._delete(segment, deadline)
            if segment.directory not in directories:
                self.filing.remove_store(segment.directory)

    def _delete(self, segment: Segment, deadline: Deadline) -> None:
        filing = self.filing
        filing.run(lambda: filing.delete(segment.directory, segment.number), deadline)

    def discard(
        self, pages: Sequence[PageName], deadline: Deadline, *, retire: bool = False
    ) -> dict[bytes, OSError]:
        """Forget pages, on the medium too, and tell the keeper. The digests whose records could
        not be wiped, with why. With `retire` their slots are not used again."""
        with self.lock:
            pages = [page for page in dict.fromkeys(pages) if self.holds(page)]
            slots = [page.slot for page in pages]
            entries = [self.entry(slot) for slot in slots]
            self.index.pin(slots)  # not free before the records are wiped
            for slot in slots:
                self.index.remove(slot)
        failed = self.wipe(slots, deadline)
        if not retire:
            self.unpin(slots)
        if entries and self.keeper:
            self.keeper.gone(entries)
        return {page.digest: failed[page.slot] for page in pages if page.slot in failed}

    def segments_of(self, volume: Volume) -> list[Segment]:
        """The segments in use on a root."""
        return [s for s in self.table if s.volume == volume.number and s not in self.dead]

    def pages_on(self, volume: Volume) -> int:
        """Pages on a root, those being written counted."""
        segments = self.segments_of(volume)
        sealed = sum(self._left.get(segment, 0) for segment in segments if segment.sealed)
        slots = sum(segment.slots for segment in segments if not segment.sealed)
        return slots - len(volume.free) + sealed

    def oldest_segment(self, volume: Volume) -> Segment | None:
        """The segment on a root that holds the page which is next to go, if one does."""
        segments = [segment for segment in self.segments_of(volume) if not segment.sealed]
        with self.lock:
            slot = self.index.policy.oldest
        wanted = self.table.place(slot)[0] if slot is not None else None
        return wanted if wanted in segments else next(iter(segments), None)

    def forget_segment(self, segment: Segment) -> int:
        """Drop every page of a segment, some at a time, and use its slots no more; how many."""
        first = self.table.first_slot(segment)
        slots = range(first, first + segment.slots)
        with self.lock:
            self.dead.add(segment)
            volume = self.volumes[segment.volume]
            volume.free = array("i", (slot for slot in volume.free if slot not in slots))
            volume.store.adopted_pages -= self._left.pop(segment, 0)
        starts = range(0, len(slots), _CHUNK)
        dropped = sum(self._drop(slots[start : start + _CHUNK]) for start in starts)
        self.files.forget(segment.data_path)
        self.files.forget(segment.index_path)
        return dropped

    def _drop(self, slots: Iterable[int]) -> int:
        with self.lock:
            used = [slot for slot in slots if self.index.page(slot)[0]]
            entries = [self.entry(slot) for slot in used]
            for slot in used:
                self.index.remove(slot)
        if entries and self.keeper:
            self.keeper.gone(entries)
        return len(used)

    def wipe(self, slots: Sequence[int], deadline: Deadline) -> dict[int, OSError]:
        """Clear the records of slots that no page is in; of which that fails, and why."""
        by_segment: dict[Segment, dict[int, int]] = {}
        for slot in slots:
            segment, within = self.table.place(slot)
            by_segment.setdefault(segment, {})[within] = slot
        failed: dict[int, OSError] = {}
        for segment, here in by_segment.items():
            try:
                self.filing.zero(segment, sorted(here), deadline)
            except OSError as error:
                failed.update(dict.fromkeys(here.values(), error))
            else:
                for slot in here.values():
                    self.dirty[slot] = 0
        return failed
