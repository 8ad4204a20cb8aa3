"""Writing the pages of one batch: choose what is to be written, move it in one call, commit."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.io.engine import IoResult, WriteBatch
from hicache_backends.outcomes import TIMED_OUT, Outcome, Reason, miss
from hicache_backends.pages import Pages
from hicache_backends.segment.calls import Flight
from hicache_backends.segment.files import CallFiles, bad_spots, failed_as, failure
from hicache_backends.segment.format import RECORD_BYTES
from hicache_backends.segment.segment import Segment
from hicache_backends.segment.space import Space
from hicache_backends.segment.staging import always
from hicache_backends.segment.state import StoreState

_RECORD = struct.Struct("<16s16sQQIIII")
_BEING_WRITTEN = miss(Reason.BEING_WRITTEN, "by another call on this store")
_GIVEN_UP = miss(Reason.NO_SPACE, "its segment was given up meanwhile")
_WIPE_MS = 2000.0
_NO_SPACE = miss(Reason.NO_SPACE, "full of pages that are in use or kept for others")
_OVER_QUOTA = miss(Reason.QUOTA, "at the ordered limit, with pages in use or kept for others")


class Writing:
    """The put of one batch: it holds pins, files, slots and the flight until it ends.

    `outcomes`: what is known so far. `rows`: positions of the pages that are to be written.
    """

    def __init__(
        self,
        state: StoreState,
        digests: Sequence[bytes],
        parents: Sequence[bytes],
        deadline: Deadline,
        flight: Flight,
    ) -> None:
        self._state = state
        self._digests = digests
        self._parents = parents
        self._deadline = deadline
        self._flight = flight
        self._files = CallFiles(state, deadline)
        self.outcomes = [TIMED_OUT] * len(digests)
        self.rows: list[int] = []
        self._slots: list[int] = []  # of `rows`
        self._stored: dict[int, int] = {}  # position to slot
        self._again: dict[int, int] = {}  # position to that of the same page before it
        self._pinned: list[int] = []
        self._generation = 0
        with state.lock:
            self._sort_out()

    def _sort_out(self) -> None:
        """What is stored already, and what no other call is writing; under the lock."""
        state, index = self._state, self._state.index
        first: dict[bytes, int] = {}
        for i, digest in enumerate(self._digests):
            slot = index.slots.get(digest)
            if slot is not None and state.any_failed and state.volume_of(slot).failed:
                index.remove(slot)
                slot = None
            if slot is not None:
                self._stored[i] = slot
                self.outcomes[i] = Outcome(True, existed=True, location=state.location(slot))
            elif digest in first:
                self._again[i] = first[digest]
            elif digest in state.writing:
                self.outcomes[i] = _BEING_WRITTEN
            else:
                first[digest] = i
        self.rows = list(first.values())
        parents = (index.slots.get(self._parents[i]) for i in self.rows)
        self._pinned = [*self._stored.values(), *(slot for slot in parents if slot is not None)]
        index.pin(self._pinned)  # making room must not take them
        state.writing.update(first)

    def reserve(self, space: Space) -> None:
        """Find slots; pages at the end of the batch go without where there are too few."""
        self._slots, allowed = space.take([self._digests[i] for i in self.rows], self._deadline)
        for n, i in enumerate(self.rows[len(self._slots) :], len(self._slots)):
            why = self._why_not() if n < allowed else _OVER_QUOTA
            self.outcomes[i] = TIMED_OUT if self._deadline.passed else why
        self._give_up(self.rows[len(self._slots) :])
        self.rows = self.rows[: len(self._slots)]

    def _why_not(self) -> Outcome:
        failed = [volume.failed for volume in self._state.volumes]
        return miss(Reason.IO_ERROR, "; ".join(failed)) if all(failed) else _NO_SPACE

    def run(self, pages: Pages, in_time: Callable[[], bool] = always) -> list[Outcome]:
        """Write `pages`, those of `rows`; the outcomes of the whole batch. Ends the call. What is
        written too late is wiped: the caller told nobody of it."""
        try:
            results, checksums = self._write(pages) if self.rows else ([], [])
            if not in_time():
                self._state.wipe(self._slots, Deadline.after_ms(_WIPE_MS))
                return self.outcomes
            return self._commit(results, checksums)
        finally:
            self.end()

    def end(self) -> None:
        """Let go of everything. Slots that were not committed are free again."""
        self._files.end()
        with self._state.lock:
            self._state.free(self._slots)
            self._slots = []
            self._state.free(self._state.index.unpin(self._pinned))
            self._pinned = []
        self._give_up(self.rows)
        self._flight.end()

    def _give_up(self, rows: Sequence[int]) -> None:
        with self._state.lock:
            self._state.writing.difference_update([self._digests[i] for i in rows])

    def _write(self, pages: Pages) -> tuple[list[int], list[int]]:
        state = self._state
        places = [state.table.place(slot) for slot in self._slots]
        segments = [segment for segment, _ in places]
        with state.lock:
            self._generation = state.generation
            state.generation += len(self.rows)
            was_used = np.array([state.dirty[slot] for slot in self._slots], dtype=np.bool_)
            for slot in self._slots:
                state.dirty[slot] = 1
        batch = WriteBatch(
            np.array(self._files.data_fds(segments, pages), dtype=np.int32),
            np.array([within * state.slot_bytes for _, within in places], dtype=np.int64),
            pages,
            b"".join(self._digests[i] for i in self.rows),
            np.array(self._files.index_fds(segments), dtype=np.int32),
            np.array([within * RECORD_BYTES for _, within in places], dtype=np.int64),
            self._records(),
            was_used,
            padded_bytes=state.filing.padded_bytes,
        )
        io = self._move(batch, places)
        return self._files.results(segments, io.results.tolist()), io.checksums.tolist()

    def _move(self, batch: WriteBatch, places: Sequence[tuple[Segment, int]]) -> IoResult:
        state, deadline = self._state, self._deadline
        try:
            with state.filing.recording(places, batch.record_fds.tolist(), deadline) as runs:
                whole = replace(batch, runs=runs)
                io = state.engine.write(whole, deadline, threads=self._files.threads)
                state.filing.settle([segment for segment, _ in places], io.results.tolist())
                return io
        except TimeoutError:
            return failed_as(errno.ETIMEDOUT, len(places))
        except StorageUnavailable:
            return failed_as(errno.ENOTCONN, len(places))

    def _records(self) -> bytearray:
        records = bytearray(len(self.rows) * RECORD_BYTES)
        for n, i in enumerate(self.rows):
            _RECORD.pack_into(
                records,
                n * RECORD_BYTES,
                self._digests[i],
                self._parents[i],
                self._generation + n,
                0,
                self._state.page_bytes,
                0,
                0,
                0,
            )
        return records

    def _commit(self, results: list[int], checksums: list[int]) -> list[Outcome]:
        """Make what was written visible, and note the use of the batch, the last page first."""
        state, outcomes = self._state, list(self.outcomes)
        written = {i: n for n, i in enumerate(self.rows)}
        with state.lock:
            for i in reversed(range(len(outcomes))):
                n = written.get(i)
                if n is None:
                    self._use(i)
                elif state.table.place(self._slots[n])[0] in state.dead:
                    outcomes[i] = _GIVEN_UP
                elif results[n] == state.page_bytes:
                    self._add(i, n, checksums[n])
                    outcomes[i] = Outcome(True, location=state.location(self._slots[n]))
                else:
                    outcomes[i] = failure(-results[n] if results[n] < 0 else errno.EIO)
            state.counts["written_pages"] += sum(outcomes[i].ok for i in written)
            bad = bad_spots(results, state.filing.bad_place)  # those slots are not used again
            left = (n for i, n in written.items() if not outcomes[i].ok and n not in bad)
            self._slots = [self._slots[n] for n in left]
        for i, earlier in self._again.items():
            outcomes[i] = replace(outcomes[earlier], existed=outcomes[earlier].ok)
        return outcomes

    def _add(self, i: int, n: int, checksum: int) -> None:
        self._state.index.add(
            self._slots[n], self._digests[i], self._parents[i], self._generation + n, checksum
        )

    def _use(self, i: int) -> None:
        slot = self._stored.get(i)
        index = self._state.index
        if slot is not None and index.slots.get(self._digests[i]) == slot:
            index.policy.touch((slot,))
            index.learn(self._digests[i], self._parents[i])
