"""Reading the pages of one batch: find them, move them in one call, judge each."""

from __future__ import annotations

import contextlib
import errno
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.io.engine import ReadBatch
from hicache_backends.outcomes import (
    BAD_CHECKSUM,
    HIT,
    STALE,
    Outcome,
    Reason,
    miss,
)
from hicache_backends.pages import Pages
from hicache_backends.segment.calls import Flight
from hicache_backends.segment.files import CallFiles, bad_spots, failed_as, failure
from hicache_backends.segment.foreign import ForeignIndex, Neighbours, Source
from hicache_backends.segment.format import RECORD, RECORD_BYTES
from hicache_backends.segment.staging import always
from hicache_backends.segment.state import PageName, StoreState

_WIPE_MS = 100.0  # at least


class Reader:
    """Finds pages: in the own index, in stores that nobody had open, at a given location."""

    def __init__(self, state: StoreState, foreign: ForeignIndex, neighbours: Neighbours) -> None:
        self.state = state
        self.foreign = foreign
        self.neighbours = neighbours

    def find(
        self, digests: Sequence[bytes], locations: Sequence[bytes] | None
    ) -> list[Source | Outcome]:
        """For each page its source, or why there is none. Slots of the own store are pinned."""
        own = self._own(digests)
        try:
            return [
                source
                or self.foreign.find(digests[i])
                or self._elsewhere(digests[i], locations[i] if locations else b"")
                for i, source in enumerate(own)
            ]
        except BaseException:
            self.state.unpin([source.own for source in own if source])
            raise

    def why_missing(self, digest: bytes) -> Outcome:
        """Why a page is in neither index."""
        state = self.state
        slot = state.index.slots.get(digest)
        if slot is not None and (why := state.volume_of(slot).failed):
            return miss(Reason.IO_ERROR, why)
        if digest in state.writing:
            return miss(Reason.BEING_WRITTEN)
        return state.ghosts.miss(digest)

    def _own(self, digests: Sequence[bytes]) -> list[Source | None]:
        state, index, place = self.state, self.state.index, self.state.table.place
        with state.lock:
            slots = list(map(index.slots.get, digests))
            if state.any_failed:
                slots = [s if s is None or not state.volume_of(s).failed else None for s in slots]
            index.pin([slot for slot in slots if slot is not None])
            return [
                None
                if slot is None
                else Source(*place(slot), index.generation[slot], index.checksum[slot], slot)
                for slot in slots
            ]

    def _elsewhere(self, digest: bytes, location: bytes) -> Source | Outcome:
        if not location:
            return self.why_missing(digest)
        roots = [volume.medium.root for volume in self.state.volumes]
        own = [volume.store.uuid for volume in self.state.volumes]
        return self.neighbours.find(location, roots, own) or STALE


class Reading:
    """The read of one call: it holds the pins, the files and the flight until it ends."""

    def __init__(
        self,
        reader: Reader,
        digests: Sequence[bytes],
        sources: Sequence[Source],
        deadline: Deadline,
        flight: Flight,
    ) -> None:
        self._reader = reader
        self._state = reader.state
        self._digests = digests
        self._sources = sources
        self._deadline = deadline
        self._flight = flight
        self._files = CallFiles(reader.state, deadline)

    def run(self, pages: Pages, in_time: Callable[[], bool] = always) -> list[Outcome]:
        """Read into `pages`, one outcome each. Ends the call."""
        try:
            results, checksums = self._read(pages)
            outcomes = self._judge(results, checksums)
            if in_time():
                self._touch(outcomes)
            return outcomes
        finally:
            self.end()

    def end(self) -> None:
        """Let go of everything."""
        self._files.end()
        self._state.unpin([source.own for source in self._sources if source.own >= 0])
        self._flight.end()

    def _read(self, pages: Pages) -> tuple[list[int], list[int]]:
        slot_bytes = self._state.slot_bytes
        segments = [source.segment for source in self._sources]
        batch = ReadBatch(
            np.array(self._files.data_fds(segments, pages), dtype=np.int32),
            np.array([source.slot * slot_bytes for source in self._sources], dtype=np.int64),
            pages,
            b"".join(self._digests),
        )
        try:
            io = self._state.engine.read(batch, self._deadline, threads=self._files.threads)
        except StorageUnavailable:
            io = failed_as(errno.ENOTCONN, len(segments))
        return self._files.results(segments, io.results.tolist()), io.checksums.tolist()

    def _judge(self, results: list[int], checksums: list[int]) -> list[Outcome]:
        page_bytes = self._state.page_bytes
        outcomes = [HIT] * len(results)
        own: list[int] = []
        others: list[int] = []
        for i, source in enumerate(self._sources):
            if results[i] != page_bytes or checksums[i] != source.checksum:
                outcomes[i] = BAD_CHECKSUM if results[i] >= 0 else failure(-results[i])
                (others if source.own < 0 else own).append(i)
        if own:
            bad = bad_spots(results, self._state.filing.bad_place)
            lost_errnos = self._state.filing.lost
            lost = [i for i in own if results[i] >= 0 or -results[i] in lost_errnos]
            self._discard([i for i in lost if i not in bad])
            self._discard([i for i in lost if i in bad], retire=True)
        if others:
            gone = [i for i in others if results[i] == -errno.ENOENT]
            self._recheck(gone, [i for i in others if results[i] >= 0], outcomes)
        read = [source for source, o in zip(self._sources, outcomes, strict=True) if o.ok]
        self._reader.neighbours.mark_read([source for source in read if source.own < 0])
        return outcomes

    def _touch(self, outcomes: list[Outcome]) -> None:
        """Note the use of what was read, the last page first."""
        state, holds = self._state, self._state.index.holds
        rows = [i for i in reversed(range(len(outcomes))) if outcomes[i].ok]
        own = [(self._sources[i], self._digests[i]) for i in rows if self._sources[i].own >= 0]
        with state.lock:
            state.index.policy.touch(
                [s.own for s, digest in own if holds(s.own, digest, s.generation)]
            )
            state.counts["read_bytes"] += len(rows) * state.page_bytes

    def _discard(self, rows: list[int], *, retire: bool = False) -> None:
        """Drop own pages that cannot be read, so that the next put writes them again."""
        pages = [
            PageName(self._sources[i].own, self._digests[i], self._sources[i].generation)
            for i in rows
        ]
        self._state.counts["unreadable_pages"] += len(pages)
        deadline = Deadline.after_ms(max(_WIPE_MS, self._deadline.remaining_ms()))
        self._state.discard(pages, deadline, retire=retire)

    def _recheck(self, gone: list[int], read: list[int], outcomes: list[Outcome]) -> None:
        """Tell pages of other stores that are bad from those that left: the slot holds another
        page by now, or the location never was the page's."""
        records = self._records(read)
        segments = {self._sources[i].segment for i in read}
        lost = {segment for segment in segments if self._files.has_lost(segment)}
        for i, record in zip(read, records, strict=True):
            source = self._sources[i]
            if (
                source.segment in lost
                or record["digest"].item() != self._digests[i]
                or record["generation"] != source.generation
                or record["checksum"] != source.checksum
            ):
                gone.append(i)
        for i in gone:
            outcomes[i] = STALE
        self._state.counts["stale_locations"] += len(gone)
        self._reader.foreign.forget([self._digests[i] for i in {*gone, *read}])

    def _records(self, rows: list[int]) -> NDArray[np.void]:
        """The index records of these pages right now, zeros where they cannot be read."""
        records = np.zeros(len(rows), dtype=RECORD)
        buffers = list(records.view(np.uint8).reshape(-1, RECORD_BYTES))
        if rows:
            segments = [self._sources[i].segment for i in rows]
            offsets = [self._sources[i].slot * RECORD_BYTES for i in rows]
            batch = ReadBatch(
                np.array(self._files.index_fds(segments), dtype=np.int32),
                np.array(offsets, dtype=np.int64),
                Pages.from_buffers(buffers, writable=True),
                b"".join(self._digests[i] for i in rows),
            )
            with contextlib.suppress(StorageUnavailable):
                self._state.engine.read(batch, self._deadline)
        return records
