"""One put or get: in batches, through an area of its own or in the caller's registered memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import Engine
from hicache_backends.objects.index import Index
from hicache_backends.objects.lanes import Area, Call
from hicache_backends.objects.store import ObjectStore
from hicache_backends.objects.trailer import fits, seal
from hicache_backends.outcomes import BAD_CHECKSUM, HIT, STALE, TIMED_OUT, Outcome, Reason
from hicache_backends.pages import Pages
from hicache_backends.segment.format import Location

_IN_PLACE = 2
"""Batches at once of pages that are moved in place: between them the deadline is looked at."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where the pages of a namespace lie and how they are moved. `batch_bytes`: moved at once.
    `zero_copy`: registered memory is used as it is."""

    store: ObjectStore
    engine: Engine
    prefix: str
    page_bytes: int
    batch_bytes: int
    zero_copy: bool

    def keys(self, digests: Sequence[bytes]) -> list[str]:
        """Keys of pages: 256 folders, for stores whose folders grow slow."""
        names = [digest.hex() for digest in digests]
        return [f"{self.prefix}/{name[:2]}/{name}" for name in names]

    def batches(self, rows: Sequence[int], *, in_place: bool) -> Iterator[Sequence[int]]:
        """Rows, as many at once as fit into a batch; more where they need no memory."""
        room = self.batch_bytes * (_IN_PLACE if in_place else 1)
        most = max(1, room // self.page_bytes)
        return (rows[start : start + most] for start in range(0, len(rows), most))


class Transfer:
    """The pages of one call. `outcomes`, one a page, start as timeouts and change while the
    caller waits, never later."""

    def __init__(
        self, place: Place, digests: Sequence[bytes], pages: Pages, deadline: Deadline
    ) -> None:
        self.place = place
        self.digests = digests
        self.pages = pages
        self.deadline = deadline
        self.outcomes: list[Outcome] = [TIMED_OUT] * len(digests)
        self.in_place = place.zero_copy and place.store.reaches(pages)


class Put(Transfer):
    """Pages to the store. `rows`: of distinct pages that no other call is writing."""

    def __init__(
        self,
        place: Place,
        index: Index,
        digests: Sequence[bytes],
        pages: Pages,
        parents: Sequence[bytes],
        deadline: Deadline,
    ) -> None:
        super().__init__(place, digests, pages, deadline)
        self.parents = parents
        self.rows: list[int] = []
        self._index = index

    def run(self, area: Area, call: Call) -> None:
        """Write what is not there, a batch at a time."""
        try:
            for rows in self.place.batches(self.rows, in_place=self.in_place):
                if self.deadline.passed or call.abandoned:
                    return
                self._run_batch(rows, area, call)
        finally:
            self.give_up()

    def give_up(self) -> None:
        """Let other calls write the pages."""
        self._index.end_writing([self.digests[i] for i in self.rows])

    def _run_batch(self, rows: Sequence[int], area: Area, call: Call) -> None:
        keys = self.place.keys([self.digests[i] for i in rows])
        there = [False] * len(keys)
        if self.place.store.asks_first():
            there = self.place.store.exists(keys, self.deadline)
        with call.attended() as here:
            if here:
                self._note_existing([i for i, found in zip(rows, there, strict=True) if found])
        absent = [n for n, found in enumerate(there) if not found]
        if absent:
            self._write([rows[n] for n in absent], [keys[n] for n in absent], area, call)

    def _note_existing(self, rows: Sequence[int]) -> None:
        """Pages that others wrote become known here too, unless this process has its own bound."""
        for i in rows:
            digest = self.digests[i]
            if self._index.limit is None:
                self._index.add(digest, self.parents[i], 0)
            self.outcomes[i] = Outcome(True, existed=True, location=self._index.location(digest))

    def _write(self, rows: Sequence[int], keys: list[str], area: Area, call: Call) -> None:
        place = self.place
        digests = [self.digests[i] for i in rows]
        pages, names = self.pages[rows], b"".join(digests)
        if self.in_place:
            objects, trailers = area.behind(pages)
            sums = place.engine.checksum(pages, names)
        else:
            objects, staged, trailers = area.objects(len(rows), place.page_bytes)
            with call.attended() as here:
                if not here:
                    return
                sums = place.engine.copy_and_sum(pages, staged, names)
        seal(trailers, digests, [self.parents[i] for i in rows], place.page_bytes, sums)
        written = place.store.put_from(keys, objects, self.deadline)
        with call.attended() as here:
            if not here:
                return
            for i, checksum, outcome in zip(rows, sums.tolist(), written, strict=True):
                if outcome.existed:
                    self._note_existing([i])
                    continue
                if outcome.ok:
                    location = self._index.add(self.digests[i], self.parents[i], checksum)
                    outcome = Outcome(True, location=location)
                self.outcomes[i] = outcome


class Get(Transfer):
    """Pages from the store. `locations`: what the registry says of each, b"" if nothing."""

    def __init__(
        self,
        place: Place,
        digests: Sequence[bytes],
        pages: Pages,
        locations: Sequence[bytes],
        deadline: Deadline,
    ) -> None:
        super().__init__(place, digests, pages, deadline)
        self.rows: list[int] = []
        self._locations = locations

    def run(self, area: Area, call: Call) -> None:
        """Read, a batch at a time, no page twice in one: not every store can."""
        for wave in self._waves():
            for rows in self.place.batches(wave, in_place=self.in_place):
                if self.deadline.passed or call.abandoned:
                    return
                self._run_batch(rows, area, call)

    def _waves(self) -> Iterator[Sequence[int]]:
        """The rows such that no wave has a page twice."""
        left = self.rows
        while left:
            first = {self.digests[i]: i for i in reversed(left)}
            yield sorted(first.values())
            left = [i for i in left if first[self.digests[i]] != i]

    def _run_batch(self, rows: Sequence[int], area: Area, call: Call) -> None:
        """A page that is wrong is read once more: it may have been removed under the read."""
        bad = self._read(rows, area, call)
        if bad and not call.abandoned:
            bad = self._read(bad, area, call)
        if bad:
            self.place.store.remove(self.place.keys([self.digests[i] for i in bad]), self.deadline)

    def _read(self, rows: Sequence[int], area: Area, call: Call) -> list[int]:
        """Read pages; the rows of those that are wrong."""
        place, pages = self.place, self.pages[rows]
        keys = place.keys([self.digests[i] for i in rows])
        if self.in_place:
            source = pages
            objects, trailers = area.behind(pages)
        else:
            objects, source, trailers = area.objects(len(rows), place.page_bytes)
        outcomes = place.store.get_into(keys, objects, self.deadline)
        came = [n for n, outcome in enumerate(outcomes) if outcome.ok]
        digests = [self.digests[rows[n]] for n in came]
        names = b"".join(digests)
        with call.attended() as here:
            if not here:
                return []
            if self.in_place:
                sums = place.engine.checksum(pages[came], names)
            else:
                sums = place.engine.copy_and_sum(source[came], pages[came], names)
            right = fits(trailers[came], digests, place.page_bytes, sums)
            for n, good, checksum in zip(came, right, sums.tolist(), strict=True):
                expected = _expected(self._locations[rows[n]], place.page_bytes, checksum)
                outcomes[n] = BAD_CHECKSUM if not good else HIT if expected else STALE
            for i, outcome in zip(rows, outcomes, strict=True):
                self.outcomes[i] = outcome
        return [i for i, o in zip(rows, outcomes, strict=True) if o.reason is Reason.CHECKSUM]


def _expected(location: bytes, page_bytes: int, checksum: int) -> bool:
    """Whether a page of this checksum is the one that the location names."""
    if not location:
        return True
    try:
        place = Location.unpack(location)
    except ValueError:
        return False
    return place.length == page_bytes and place.checksum in (0, checksum)
