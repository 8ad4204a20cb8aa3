"""The store that people import: batched get, set, exists and prefetch, every miss explained."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Final

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, InvalidBuffer, StorageClosed, StorageError
from hicache_backends.identity import Namespace
from hicache_backends.native_calls import page_digests
from hicache_backends.outcomes import Outcome, Reason, miss
from hicache_backends.pages import Pages
from hicache_backends.storage import ROOT, UNKNOWN, PageStorage
from hicache_storage.access_log import AccessLog
from hicache_storage.depth import Depth
from hicache_storage.keeper import RegistryKeeper
from hicache_storage.metrics import Metrics
from hicache_storage.options import Mode, StoreOptions, check_mode
from hicache_storage.prefetch import Prefetcher, PrefetchHandle, Priority
from hicache_storage.reading import Reader
from hicache_storage.reported import ReportedPages
from hicache_storage.reporting import Reporting
from hicache_storage.throttle import LoadsFirst, RateCap
from hicache_storage.writing import Writer
from kvmanager.model import Orders
from kvmanager.registry import Registry

Buffers = Pages | Sequence[Any]
UNTOLD: Final = "\0untold"
"""The parent of a page whose place in its chain is not told; no page hash has this value."""

MODE_OFF = miss(Reason.MODE, "mode is off")
MODE_READ = miss(Reason.MODE, "mode is read")
_CLEAR_BATCH = 1024
_log = logging.getLogger(__name__)


class PageStore:
    """One backend and, if there is one, the registry behind it. Thread safe, synchronous.

    Page keys are strings, SGLang's chained page hashes. Buffers are `Pages`, or one buffer or a
    list of pieces a page; each page has exactly `namespace.page_bytes` bytes. A batch returns one
    outcome a key, in order. The registry's failures are reasons, never exceptions; a
    `StorageError` means that the storage as a whole failed and nothing was carried out.
    """

    def __init__(
        self,
        storage: PageStorage,
        namespace: Namespace,
        *,
        registry: Registry | None = None,
        options: StoreOptions | None = None,
        metrics: Metrics | None = None,
        access_log: AccessLog | None = None,
    ) -> None:
        self.options = options or StoreOptions()
        self.namespace = namespace
        self.storage = storage
        self.registry = registry
        self.metrics = metrics or Metrics.create(type(storage).__name__, namespace.tenant)
        self._access_log = access_log
        self._fingerprint = namespace.fingerprint
        self._mode: Mode = self.options.mode
        self._ordered: Mode | None = None
        self._closed = False
        self._clearing = threading.Lock()
        self._reported = ReportedPages(storage, registry, namespace.page_bytes)
        turns = LoadsFirst()
        read_cap = RateCap(self.options.max_read_bytes_per_s)
        write_cap = RateCap(self.options.max_write_bytes_per_s)
        get_size, set_size = self.options.batch_get_size, self.options.batch_set_size
        self._tally = self.metrics.tally
        self._reader = Reader(storage, registry, read_cap, turns, get_size, self.metrics)
        self._writer = Writer(storage, registry, write_cap, turns, set_size, self._tally)
        self._prefetcher = Prefetcher(
            self._prefetch_chunk,
            Depth(self.options.prefetch_depth),
            get_size,
            self.options.max_queued_bytes,
            self.metrics.count,
        )
        storage.set_keeper(RegistryKeeper(registry, self.metrics.evicted))
        self.metrics.watch(storage.stats, storage.media)
        self.reporting: Reporting | None = None
        if registry is not None:
            self.reporting = Reporting(
                self._tally, storage, registry, lambda: self.mode, namespace.page_bytes
            )
            try:
                registry.report(self.reporting)
                registry.start(self._obey)
            except BaseException:
                self.metrics.unwatch()
                registry.close()
                raise

    @property
    def mode(self) -> Mode:
        """What calls may do: "off", "read" or "read_write". May be switched at any time; while the
        registry orders another one, that is in force."""
        return self._ordered or self._mode

    @mode.setter
    def mode(self, mode: str) -> None:
        self._mode = check_mode(mode)

    def exists(self, keys: Sequence[str], *, timeout_ms: float | None = None) -> int:
        """How many pages from the start could be read right now. Pins and promises nothing."""
        began = time.monotonic()
        digests = self._open_digests(keys)
        found, why = 0, MODE_OFF.reason
        if self.mode != "off":
            found, why = self._reader.exists(digests, self._deadline(timeout_ms))
        self.metrics.looked_up(len(keys), found, time.monotonic() - began, why)
        if self._access_log is not None:
            self._access_log.record("exists", keys, found)
        return found

    def present(self, keys: Sequence[str], *, timeout_ms: float | None = None) -> list[bool]:
        """For each page whether it could be read right now. Pins and promises nothing."""
        began = time.monotonic()
        digests = self._open_digests(keys)
        if self.mode == "off":
            there = [False] * len(keys)
        else:
            there = self._reader.present(digests, self._deadline(timeout_ms))
        self.metrics.looked_up(len(keys), sum(there), time.monotonic() - began)
        return there

    def get(
        self, keys: Sequence[str], buffers: Buffers, *, timeout_ms: float | None = None
    ) -> list[Outcome]:
        """Read pages into `buffers`. A page whose outcome is not ok leaves its buffer undefined.

        Raises InvalidKey, InvalidBuffer (before any I/O), StorageError.
        """
        began = time.monotonic()
        deadline = self._deadline(timeout_ms)
        digests = self._open_digests(keys)
        pages = self._pages(keys, buffers, writable=True)
        self._note_load(digests)
        if self.mode == "off":
            outcomes = [MODE_OFF] * len(keys)
        else:
            outcomes = self._reader.get(digests, pages, deadline)
        self._observe("get", keys, outcomes, began)
        return outcomes

    def set(
        self,
        keys: Sequence[str],
        buffers: Buffers,
        *,
        parent: str | None = UNTOLD,
        timeout_ms: float | None = None,
    ) -> list[Outcome]:
        """Store pages, which follow one another in their chain.

        `parent`: the hash of the page before `keys[0]`, None if that begins its chain; left out,
        its place is unknown. Buffers are read during the call only. A page that is there already,
        or that another process is writing right now, is ok and not written again.
        Raises InvalidKey, InvalidBuffer (before any I/O), StorageError.
        """
        began = time.monotonic()
        deadline = self._deadline(timeout_ms)
        digests = self._open_digests(keys)
        pages = self._pages(keys, buffers, writable=False)
        mode = self.mode
        if mode != "read_write":
            outcomes = [MODE_OFF if mode == "off" else MODE_READ] * len(keys)
        else:
            outcomes = self._writer.set(digests, pages, self._parent(parent), deadline)
        self._observe("set", keys, outcomes, began)
        return outcomes

    def prefetch(
        self,
        keys: Sequence[str],
        buffers: Buffers,
        *,
        priority: Priority = "prefetch",
        timeout_ms: float | None = None,
    ) -> PrefetchHandle:
        """Read pages in the background, in order, up to the first miss.

        The buffers are the store's until the handle is `done`. "request" goes before "prefetch".
        Raises InvalidKey, InvalidBuffer.
        """
        digests = self._open_digests(keys)
        pages = self._pages(keys, buffers, writable=True)
        self.metrics.prefetch_started(len(keys))
        self._note_load(digests)
        return self._prefetcher.submit(digests, pages, self._deadline(timeout_ms), priority)

    def explain(self, keys: Sequence[str], *, timeout_ms: float | None = None) -> list[Outcome]:
        """For each page, why a get would miss it right now; ok if it would be tried."""
        if self.mode == "off":
            return [MODE_OFF] * len(keys)
        return self._reader.explain(self._open_digests(keys), self._deadline(timeout_ms))

    def clear(self) -> int:
        """Remove every page of this process's own store, here and from the registry; how many."""
        self._open_digests(())
        removed = 0
        with self._clearing:
            digests = [entry.digest for entry in self.storage.entries()]
            for start in range(0, len(digests), _CLEAR_BATCH):
                batch = digests[start : start + _CLEAR_BATCH]
                removed += sum(outcome.ok for outcome in self.storage.remove(batch))
        return removed

    def stats(self) -> dict[str, int | float | str]:
        """Counters and gauges of the store, its storage and its registry session, flat."""
        stats: dict[str, int | float | str] = {"mode": self.mode}
        stats |= {f"storage_{name}": value for name, value in self.storage.stats().items()}
        if self.registry is not None:
            stats["registry_state"] = self.registry.state.value
            stats |= {f"registry_{name}": value for name, value in self.registry.stats().items()}
        stats["second_looks"] = self._reader.second_looks
        stats["prefetch_queued_bytes"] = self._prefetcher.queued_bytes
        return stats

    def close(self, timeout_ms: float = 5000) -> bool:
        """Leave the registry and close the storage. False if an I/O is stuck in the kernel."""
        if self._closed:
            return True
        self._closed = True
        try:
            self._prefetcher.close()
            self.metrics.unwatch()
            if self.registry is not None:
                self.registry.close()
            if self._access_log is not None:
                self._access_log.close()
        finally:  # or its lock would keep the next process from these pages
            closed = self.storage.close(timeout_ms)
        return closed

    def __enter__(self) -> PageStore:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _open_digests(self, keys: Sequence[str]) -> list[bytes]:
        if self._closed:
            raise StorageClosed("the page store is closed")
        if isinstance(keys, str):
            raise ConfigError("keys is a sequence of page hashes, not one string")
        return page_digests(self._fingerprint, keys)

    def _deadline(self, timeout_ms: float | None) -> Deadline:
        return Deadline.after_ms(self.options.timeout_ms if timeout_ms is None else timeout_ms)

    def _parent(self, parent: str | None) -> bytes:
        if parent is None:
            return ROOT
        return UNKNOWN if parent == UNTOLD else page_digests(self._fingerprint, [parent])[0]

    def _pages(self, keys: Sequence[str], buffers: Buffers, *, writable: bool) -> Pages:
        if isinstance(buffers, Pages):
            pages = buffers
            if writable and not pages.writable:
                raise InvalidBuffer("these pages are not writable")
        else:
            pages = Pages.from_buffers(buffers, writable=writable)
        if len(pages) != len(keys):
            raise InvalidBuffer(f"{len(keys)} keys but {len(pages)} buffers")
        if len(pages) and pages.page_bytes != self.namespace.page_bytes:
            raise InvalidBuffer(
                f"pages of {pages.page_bytes} bytes; this namespace stores pages of "
                f"{self.namespace.page_bytes} bytes"
            )
        return pages

    def _prefetch_chunk(
        self, digests: Sequence[bytes], pages: Pages, deadline: Deadline
    ) -> list[Outcome]:
        began = time.monotonic()
        if self.mode == "off":
            outcomes = [MODE_OFF] * len(digests)
        else:
            outcomes = self._reader.get(digests, pages, deadline)
        self._observe("prefetch", (), outcomes, began)
        return outcomes

    def _note_load(self, digests: Sequence[bytes]) -> None:
        if digests:
            self._tally.loaded(digests[0], len(digests))

    def _observe(self, op: str, keys: Sequence[str], outcomes: list[Outcome], began: float) -> None:
        moved = sum(1 for outcome in outcomes if outcome.ok and not outcome.existed)
        self.metrics.observe(
            op, outcomes, moved * self.namespace.page_bytes, time.monotonic() - began
        )
        if self._access_log is not None and keys:
            self._access_log.record(op, keys, moved)

    def _obey(self, orders: Orders) -> None:
        """Called by the registry's heartbeat thread with what its reply says."""
        ordered = None if orders.mode is None else check_mode(orders.mode)
        if ordered != self._ordered:
            before, self._ordered = self.mode, ordered
            _log.warning("the registry switches mode from %s to %s", before, self.mode)
        if orders.clear:
            _log.warning("the namespace was cleared: dropping this process's store")
            self.storage.forget_others()
            self.clear()
        with contextlib.suppress(StorageError):  # what it could not do now is ordered again
            self.storage.restrict(orders.limit_bytes, orders.ttl_ms)
        self._reported.look(orders.bad)
