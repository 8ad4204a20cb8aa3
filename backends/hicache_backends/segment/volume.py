"""One root as a store uses it: its directory there, its free slots, and whether it works."""

from __future__ import annotations

import errno
import logging
import threading
import time
from array import array
from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_backends.segment.filing import Filing
from hicache_backends.segment.medium import Medium
from hicache_backends.segment.segment import Segment, segment_files

_log = logging.getLogger(__name__)

_FATAL = frozenset(
    (errno.ENODEV, errno.ENXIO, errno.EROFS, errno.ESHUTDOWN, errno.ENOTCONN, errno.ESTALE)
)
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))
_HARMLESS = _FULL | {0, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ETIMEDOUT}
_FAILURES_IN_A_ROW = 8
_MIN_PATIENCE_S, _MAX_PATIENCE_S = 1.0, 15.0
_LOCK_MS = 2000.0
_PROBE_S = 15.0
_SEGMENTS, _MIN_SEGMENT_SLOTS, _MAX_SEGMENT_BYTES = 64, 64, 1 << 30


class Volume:
    """What this process has on one root for one namespace.

    `free`: slots that no page is in, guarded by the store's lock, taken from its end.
    `failed`: why the root is given up, "" while it works. `failures`: failed operations in a
    row, in calls of which nothing succeeded. `deleted`: the store was deleted from outside.
    `blocked`: the file system is so full that not even what is allocated can be written.
    `is_to_yield`: a segment is to be given up.
    """

    def __init__(
        self,
        number: int,
        medium: Medium,
        filing: Filing,
        namespace: Namespace,
        deadline: Deadline,
    ) -> None:
        self.number = number
        self.medium = medium
        self.filing = filing
        self.store = medium.open_store(namespace, deadline)
        self.direct_alignment = filing.alignment(self.store.path)
        self.free = array("i")
        self.failed = ""
        self.failures = 0
        self.deleted = False
        self.blocked = False
        self.is_to_yield = False
        self._namespace = namespace
        highest = max((n for n, _ in segment_files(self.store.path)), default=0)
        self.store.next_number = max(self.store.next_number, highest + 1)
        self.growing = threading.Lock()
        self._patience_s = _MIN_PATIENCE_S
        self._refused_until_s = 0.0
        self._probe_s = 0.0

    def grow(self, segment_bytes: int | None, deadline: Deadline) -> Segment | None:
        """A new segment, or None: the root is full, has failed, or is busy until the deadline.
        The caller holds `growing`.

        A refusal is not questioned for a while, so that a full root costs a put nothing.
        """
        if self.blocked and self._takes_writes():
            self.blocked, self._refused_until_s = False, 0.0
        if self.failed or self.blocked or time.monotonic() < self._refused_until_s:
            return None
        try:
            segment = self._grow(segment_bytes, deadline)
        except OSError as error:
            self.note([error.errno or errno.EIO], "no segment can be made")
            segment = None
        if segment:
            self._patience_s = _MIN_PATIENCE_S
        else:
            self._refused_until_s = time.monotonic() + self._patience_s
            self._patience_s = min(2 * self._patience_s, _MAX_PATIENCE_S)
        return segment

    def reconsider(self) -> None:
        """There may be room again."""
        self._refused_until_s = 0.0

    def segment_slots(self, segment_bytes: int | None) -> int:
        """Of a segment, where there is room. Raises OSError."""
        unit = self.filing.stored_bytes(1)
        most = (segment_bytes or self._usual_segment_bytes(unit)) // unit
        return max(1, min(most, self.filing.max_slots))

    def note(self, errnos: Sequence[int], what: str = "I/O fails") -> None:
        """How the operations of one call went on the root: errno of each, 0 for success."""
        if not _FULL.isdisjoint(errnos):
            self.blocked = not self._still_takes_writes()
        harmless = _HARMLESS | self.filing.passing
        failures = [number for number in errnos if number not in harmless]
        if len(failures) < len(errnos):
            self.failures = 0
        else:
            self.failures += len(failures)
        if self.failures >= _FAILURES_IN_A_ROW or not _FATAL.isdisjoint(failures):
            number = max(failures, default=errno.EIO)
            self.fail(f"{what}: {errno.errorcode.get(number, number)}")

    def fail(self, why: str) -> None:
        """Give the root up: its pages are misses, the other roots go on."""
        if not self.failed:
            self.failed = why
            self._probe_s = time.monotonic() + _PROBE_S
            _log.error("%s is given up: %s", self.medium.root, why)

    def notice(self) -> None:
        """Look whether the store was deleted from outside: its open files would go on taking
        pages that nobody finds again. Now and then, whether a root that failed works again."""
        if not self.failed and self.store.vanished:
            self.deleted = True
            self.fail("the store was deleted from outside")
        elif self.failed and not self.deleted and time.monotonic() >= self._probe_s:
            self._probe_s = time.monotonic() + _PROBE_S
            threading.Thread(target=self._probe, daemon=True).start()  # it may hang

    def revive(self, deadline: Deadline) -> bool:
        """Start anew, with an empty store, where the store was deleted, or all of the root was,
        and the drive is still there; whether that went well. No page of before is known any more
        by then."""
        try:
            fresh = self.medium.open_again(self._namespace, self.store, deadline)
        except OSError as error:
            why = f"the store was deleted from outside and cannot be made again: {error}"
            if why != self.failed:
                self.failed = why
                _log.error("%s", why)
            return False
        lost, self.store = self.store, fresh
        lost.close()
        self.deleted, self.failed, self._refused_until_s = False, "", 0.0
        _log.warning("%s: starting anew", self.store.path)
        return True

    def give_up(self, segment: Segment) -> None:
        """Delete a segment that no page is in any more, for the good of other stores."""
        size = self.filing.stored_bytes(segment.slots)
        try:
            with self.medium.release(size, Deadline.after_ms(_LOCK_MS)):
                self.filing.delete(segment.directory, segment.number)
                self.store.slots.pop(segment.number, None)
                self.store.sign()
        except OSError as error:
            _log.warning("%s cannot be given up: %s", segment.data_path, error.strerror)

    def close(self, *, clean: bool) -> None:
        """Give up the store's lock."""
        if clean and not self.failed:
            try:
                self.store.sign(clean=True)
            except OSError as error:
                _log.warning("%s cannot be signed off: %s", self.store.path, error.strerror)
        self.store.close()

    def _probe(self) -> None:
        try:
            works = self._takes_writes() and self.direct_alignment in (
                0,
                self.filing.alignment(self.store.path),
            )
        except OSError:
            works = False
        if works:
            _log.warning("%s works again", self.medium.root)
            self.failures, self.failed = 0, ""

    def _still_takes_writes(self) -> bool:
        try:
            return self.filing.run(self._takes_writes, Deadline.after_ms(_LOCK_MS))
        except TimeoutError:
            return False

    def _takes_writes(self) -> bool:
        """Whether what is allocated can be overwritten."""
        try:
            self.store.sign()
        except OSError:
            return False
        return True

    def _grow(self, segment_bytes: int | None, deadline: Deadline) -> Segment | None:
        unit = self.filing.stored_bytes(1)
        most = self.segment_slots(segment_bytes) * unit
        until = Deadline.after_ms(max(1, min(deadline.remaining_ms(), _LOCK_MS)))
        name = self._namespace.fingerprint.hex()
        own = unit * sum(self.store.slots.values())
        room = self.medium.reserve(most, unit, name, own, until)
        with room as (granted, self.is_to_yield):
            return self._make(granted // unit) if granted else None

    def _make(self, slots: int) -> Segment:
        number = self.store.next_number
        self.store.next_number += 1
        self.store.slots[number] = slots
        try:
            self.store.sign()
            self.filing.create(self.store.path, number, slots)
        except OSError:
            del self.store.slots[number]
            raise
        return Segment(self.number, self.store.uuid, self.store.path, number, slots)

    def _usual_segment_bytes(self, unit: int) -> int:
        capacity, _ = self.medium.figures()
        return max(min(capacity // _SEGMENTS, _MAX_SEGMENT_BYTES), _MIN_SEGMENT_SLOTS * unit)
