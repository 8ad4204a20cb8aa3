"""The segment store: `PageStorage` over large files of equal slots, on one root or several."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

from hicache_backends.arguments import check_get, check_put
from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_backends.io.engine import Engine
from hicache_backends.outcomes import HIT, REMOVED, TIMED_OUT, Outcome, Reason, miss
from hicache_backends.pages import Pages
from hicache_backends.segment.calls import Calls, abandon_after_fork
from hicache_backends.segment.eviction import Evictor
from hicache_backends.segment.filing import Filing
from hicache_backends.segment.foreign import Neighbours, Source
from hicache_backends.segment.opening import SegmentOptions, open_state
from hicache_backends.segment.reading import Reader, Reading
from hicache_backends.segment.space import Space
from hicache_backends.segment.staging import Mover, Staged, ZeroCopy
from hicache_backends.segment.vanished import forget_vanished
from hicache_backends.segment.volume import Volume
from hicache_backends.segment.writing import Writing
from hicache_backends.storage import (
    Capabilities,
    Keeper,
    PageEntry,
    PageStorage,
)

_REMOVE_MS = 10_000.0
_RESTRICT_MS = 1000.0
_REMOVE_PAGES = 1024


class SegmentStore(PageStorage):
    """One process's pages of one namespace, on one or several roots; see `SegmentOptions`.

    On each root it has a store of its own. A digest decides the root of its page while that root
    works and has room.
    """

    def __init__(
        self,
        namespace: Namespace,
        engine: Engine,
        filing: Filing,
        options: SegmentOptions,
        *,
        shared: bool = False,
    ) -> None:
        """Raises StorageUnavailable and IdentityMismatch."""
        self._state, foreign = open_state(namespace, engine, filing, options)
        self._options = options
        self._shared = shared
        self._foreign = foreign
        neighbours = Neighbours(namespace.fingerprint.hex(), namespace.page_bytes, filing)
        self._reader = Reader(self._state, foreign, neighbours)
        self._evictor = Evictor(self._state)
        self._space = Space(self._state, self._evictor, options.segment_bytes)
        self._mover: Mover = Staged(engine) if options.staged else ZeroCopy()
        self._calls = Calls()
        self._closing = threading.Lock()
        self._released = False
        abandon_after_fork(self)

    @property
    def capabilities(self) -> Capabilities:
        alignments = [volume.direct_alignment for volume in self._state.volumes]
        return Capabilities(
            zero_copy=not self._options.staged,
            locations=True,
            shared=self._shared,
            alignment=max([1, *alignments]) if self._state.direct else 1,
        )

    @property
    def media(self) -> tuple[bytes, ...]:
        return tuple(volume.medium.uuid for volume in self._state.volumes)

    @property
    def stores(self) -> tuple[tuple[bytes, bytes], ...]:
        """The uuids of the store and of the medium of each root, in the order of the roots."""
        return tuple((v.store.uuid, v.medium.uuid) for v in self._state.volumes)

    def store_of(self, digest: bytes) -> bytes:
        """The uuid of the store that a page of this digest would be put into."""
        return self._state.volumes[self._state.home(digest)].store.uuid

    def put(
        self, digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], deadline: Deadline
    ) -> list[Outcome]:
        check_put(digests, pages, parents, self._state.page_bytes)
        flight = self._calls.begin(deadline)
        if not digests or deadline.passed:
            flight.end()
            return [TIMED_OUT] * len(digests)
        try:
            for volume in self._state.volumes:
                volume.notice()
            writing = Writing(self._state, digests, parents, deadline, flight)
        except BaseException:
            flight.end()
            raise
        try:
            writing.reserve(self._space)
            rows = writing.rows
            chosen = pages if len(rows) == len(digests) else pages[rows]
        except BaseException:
            writing.end()
            raise
        if not rows:
            return writing.run(chosen)
        outcomes = self._mover.write(writing, chosen, deadline)
        return writing.outcomes if outcomes is None else outcomes

    def get(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        locations: Sequence[bytes] | None = None,
    ) -> list[Outcome]:
        check_get(digests, pages, locations, self._state.page_bytes)
        flight = self._calls.begin(deadline)
        if not digests or deadline.passed:
            flight.end()
            return [TIMED_OUT] * len(digests)
        try:
            found = self._reader.find(digests, locations)
        except BaseException:
            flight.end()
            raise
        rows = [i for i, source in enumerate(found) if isinstance(source, Source)]
        if not rows:
            flight.end()
            return [each for each in found if isinstance(each, Outcome)]
        sources = [each for each in found if isinstance(each, Source)]
        reading = Reading(self._reader, [digests[i] for i in rows], sources, deadline, flight)
        try:
            pages = pages if len(rows) == len(digests) else pages[rows]
        except BaseException:
            reading.end()
            raise
        read = self._mover.read(reading, pages, deadline) or [TIMED_OUT] * len(rows)
        outcomes = [each if isinstance(each, Outcome) else TIMED_OUT for each in found]
        for i, outcome in zip(rows, read, strict=True):
            outcomes[i] = outcome
        return outcomes

    def contains(self, digests: Sequence[bytes]) -> list[bool]:
        self._calls.check()
        if self._state.any_failed:
            return [self._readable(digest) for digest in digests]
        held, others = self._state.index.known.find(digests), self._foreign.rows
        if others:
            return [here or d in others for here, d in zip(held, digests, strict=True)]
        return held

    def remove(self, digests: Sequence[bytes]) -> list[Outcome]:
        deadline = Deadline.after_ms(_REMOVE_MS)
        flight = self._calls.begin(deadline)
        try:
            failed: dict[bytes, OSError] = {}
            distinct = list(dict.fromkeys(digests))
            for start in range(0, len(distinct), _REMOVE_PAGES):
                some = distinct[start : start + _REMOVE_PAGES]
                failed.update(self._remove(some, deadline))
        finally:
            flight.end()
        if not failed:
            return [REMOVED] * len(digests)
        problems = {d: miss(Reason.IO_ERROR, str(error)) for d, error in failed.items()}
        return [problems.get(digest, REMOVED) for digest in digests]

    def close(self, timeout_ms: float = 5000) -> bool:
        if not self._calls.close(timeout_ms):
            return False
        with self._closing:
            if not self._released and not self._calls.forked:
                self._released = True
                self._state.files.close()
                for volume in self._state.volumes:
                    self._sign_off(volume, timeout_ms)
        return True

    def _sign_off(self, volume: Volume, timeout_ms: float) -> None:
        with contextlib.suppress(TimeoutError):
            self._state.filing.run(lambda: volume.close(clean=True), Deadline.after_ms(timeout_ms))

    def abandon(self) -> None:
        """In a forked child: let go of the files, so that their locks die with the parent."""
        self._state.files.close()
        for volume in self._state.volumes:
            volume.store.close()

    def explain(self, digest: bytes) -> Outcome:
        self._calls.check()
        return HIT if self._readable(digest) else self._reader.why_missing(digest)

    def learn_parents(self, digests: Sequence[bytes], parents: Sequence[bytes]) -> None:
        """The parents of pages that were put without: each page here that has none takes its."""
        self._calls.check()
        with self._state.lock:
            for digest, parent in zip(digests, parents, strict=True):
                self._state.index.learn(digest, parent)

    def entries(self) -> Iterator[PageEntry]:
        self._calls.check()
        state = self._state
        for slot in state.index.heads_first():
            with state.lock:
                digest, _ = state.index.page(slot)
                entry = state.entry(slot) if digest and self._readable(digest) else None
            if entry:
                yield entry

    def forget_others(self) -> None:
        self._foreign.forget(list(self._foreign.rows))

    def recheck(self, digests: Sequence[bytes], deadline: Deadline) -> None:
        flight = self._calls.begin(deadline)
        try:
            with contextlib.suppress(TimeoutError):  # they may be there
                forget_vanished(self._state, digests, deadline)
        finally:
            flight.end()

    def set_keeper(self, keeper: Keeper | None) -> None:
        self._state.keeper = keeper

    def restrict(self, limit_bytes: int | None, ttl_ms: int | None) -> bool:
        deadline = Deadline.after_ms(_RESTRICT_MS)
        flight = self._calls.begin(deadline)
        try:
            self._evictor.restrict(limit_bytes, ttl_ms, deadline)
        finally:
            flight.end()
        return True

    def pages_by_store(self) -> dict[bytes, int]:
        state = self._state
        if len(state.volumes) == 1:
            return {state.volumes[0].store.uuid: len(state.index)}
        return {volume.store.uuid: state.pages_on(volume) for volume in state.volumes}

    def counters(self) -> dict[str, int]:
        return self._evictor.tolls.counters()

    def stats(self) -> dict[str, int | float | str]:
        """See `PageStorage.stats`; capacity and use are those of the roots, shared with other
        stores, as this process last saw them."""
        state = self._state
        figures = [volume.medium.figures() for volume in state.volumes]
        failed = [f"{v.medium.root}: {v.failed}" for v in state.volumes if v.failed]
        direct = state.direct and any(volume.direct_alignment for volume in state.volumes)
        counts = {name: state.counts[name] for name in _COUNTS}
        return {
            "pages": len(state.index),
            "bytes": len(state.index) * state.page_bytes,
            "slots": state.table.slots - sum(segment.slots for segment in state.dead),
            "slot_bytes": state.slot_bytes,
            "segments": len(state.table) - len(state.dead),
            "capacity_bytes": sum(capacity for capacity, _ in figures),
            "used_bytes": sum(used for _, used in figures),
            "foreign_pages": len(self._foreign.rows),
            "reclaimed_segments": sum(v.medium.reclaimed_segments for v in state.volumes),
            "io_mode": state.filing.io_mode or ("direct" if direct else "buffered"),
            "io_engine": state.engine.name,
            "in_flight": self._calls.in_flight,
            "hung": int(self._calls.hung),
            "pinned": state.index.pinned,
            "open_files": len(state.files),
            "failed_roots": "; ".join([*state.lost_roots, *failed]),
            **counts,
        }

    def _readable(self, digest: bytes) -> bool:
        slot = self._state.index.slots.get(digest)
        if slot is not None and not self._state.volume_of(slot).failed:
            return True
        return digest in self._foreign.rows

    def _remove(self, digests: Sequence[bytes], deadline: Deadline) -> dict[bytes, OSError]:
        self._foreign.forget(digests)
        with self._state.lock:
            slots = map(self._state.index.slots.get, digests)
            pages = [self._state.name(slot) for slot in slots if slot is not None]
        return self._state.discard(pages, deadline)


_COUNTS = (
    "evicted",
    "segments_given_up",
    "written_pages",
    "read_bytes",
    "unreadable_pages",
    "stale_locations",
    "direct_fallbacks",
    "lost_roots",
)
