"""Telling a registry what it lacks of this store: the journal's rest, or all pages again."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from hicache_backends.errors import RegistryError
from hicache_backends.storage import PageEntry
from kvmanager.core import SessionCore
from kvmanager.flow import Flow
from kvmanager.model import EntrySource

CHUNK_PAGES = 256


class Recovery:
    """Small steps, so that the data path's calls go in between."""

    def __init__(self, core: SessionCore, entries: EntrySource | None) -> None:
        self._core = core
        self._entries = entries
        self._pages: Iterator[PageEntry] | None = None

    def step(self) -> Flow[int]:
        """One step, under the mutation lock; the number of pages sent. Call it while `due`."""
        core = self._core
        if core.begin_anew:
            yield from self._begin()
            return 0
        batch = core.journal.after(core.last) if core.last < core.sequence else None
        if batch is not None:
            yield from core.resend(batch)
            core.counters["replayed"] += batch.entries
            return batch.entries
        if core.withdrawn is not None:
            return (yield from self._announce())
        core.heard(core.last)
        return 0

    @property
    def due(self) -> bool:
        """Whether a step would do something."""
        core = self._core
        return core.joined and core.behind and core.obeyed == core.epoch

    def _begin(self) -> Flow[None]:
        core = self._core
        self._pages = None
        try:
            yield from core.beat(begin=core.announcing())
        except RegistryError:
            core.begin_anew = True
            raise

    def _announce(self) -> Flow[int]:
        core = self._core
        try:
            if self._pages is None:
                self._pages = iter(self._entries()) if self._entries else iter(())
            chunk = list(itertools.islice(self._pages, CHUNK_PAGES))
        except Exception:
            core.begin_anew = True  # a source that failed half-way has not told everything
            raise
        if not chunk:
            core.withdrawn = None
            core.heard(core.last)
            return 0
        gone = core.withdrawn or ()
        entries = [entry for entry in chunk if (entry.digest, entry.location) not in gone]
        if entries:
            yield from core.publish(entries, b"")
        core.counters["announced"] += len(entries)
        return len(entries)
