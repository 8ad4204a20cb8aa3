"""Pages of this process that others found wrong, and what it does about them."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageError
from hicache_backends.outcomes import Reason
from hicache_backends.pages import Pages
from hicache_backends.storage import PageEntry, PageStorage
from kvmanager.registry import Registry

_PAGES_A_BEAT = 32
_CHECK_MS = 1000.0
"""Of a heartbeat: its process must not be thought gone."""
_log = logging.getLogger(__name__)


class ReportedPages:
    """Reading them here removes those that are wrong, and the rest are made known again. A few at
    each heartbeat; every drive has one, and one of them looks at a time."""

    def __init__(self, storage: PageStorage, registry: Registry | None, page_bytes: int) -> None:
        self._storage = storage
        self._registry = registry
        self._page_bytes = page_bytes
        self._waiting: dict[bytes, PageEntry] = {}
        self._looking = threading.Lock()

    def __len__(self) -> int:
        """How many are still to be looked at."""
        return len(self._waiting)

    def look(self, bad: Sequence[PageEntry]) -> None:
        """More were reported. What can't be looked at now is later. Raises RegistryError."""
        self._waiting.update({entry.digest: entry for entry in bad})
        if not self._waiting or not self._looking.acquire(blocking=False):
            return
        deadline = Deadline.after_ms(_CHECK_MS)
        try:
            good = self._checked(deadline)
        except StorageError as error:
            _log.info("pages that others found wrong are looked at later: %s", error)
            return
        finally:
            self._looking.release()
        if good and self._registry is not None:
            self._registry.publish(good, b"", deadline)

    def _checked(self, deadline: Deadline) -> list[PageEntry]:
        """Those that are right."""
        reported = list(self._waiting)
        self._storage.recheck(reported, deadline)
        for digest, here in zip(reported, self._storage.contains(reported), strict=True):
            if not here:
                del self._waiting[digest]
        pages = Pages.from_buffers([bytearray(self._page_bytes)], writable=True)
        good = []
        for digest in list(self._waiting)[:_PAGES_A_BEAT]:
            entry, digests = self._waiting[digest], [digest]
            outcome = self._storage.get(digests, pages, deadline)[0]
            if outcome.reason is Reason.TIMEOUT:
                break
            if outcome.ok:
                kept = self._storage.put(digests, pages, [entry.parent], deadline)[0]
                good.append(PageEntry(digest, entry.parent, kept.location))
            del self._waiting[digest]
        return good
