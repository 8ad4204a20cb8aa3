"""Reading ahead: chunks in flight up to a depth, progress as a contiguous prefix, cancellable."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
from collections.abc import Callable, Sequence
from typing import Literal

from hicache_backends.deadline import Deadline
from hicache_backends.errors import HiCacheError, StorageClosed, StorageUnavailable
from hicache_backends.outcomes import Outcome, Reason, miss
from hicache_backends.pages import Pages
from hicache_storage.depth import Depth

Priority = Literal["request", "prefetch"]
_RANK = {"request": 0, "prefetch": 1}
OnEnd = Callable[..., None]
"""Takes pairs of a counter's name and a number of pages."""
Load = Callable[[Sequence[bytes], Pages, Deadline], list[Outcome]]

CANCELLED = miss(Reason.SKIPPED, "cancelled")
AFTER_A_MISS = miss(Reason.SKIPPED, "after the first miss")
QUEUE_FULL = miss(Reason.SKIPPED, "prefetch queue full")


class PrefetchHandle:
    """One prefetch under way.

    Its buffers belong to the store until `done`: after `cancel` no further chunk begins, but one
    that is being read still writes into them.
    """

    def __init__(
        self,
        digests: Sequence[bytes],
        pages: Pages,
        deadline: Deadline,
        chunk_pages: int,
        on_end: OnEnd = lambda *counts: None,
    ) -> None:
        self.deadline = deadline
        self._digests = digests
        self._pages = pages
        self._outcomes: list[Outcome | None] = [None] * len(digests)
        self._starts = list(range(0, len(digests), chunk_pages))
        self._chunk_pages = chunk_pages
        self._next = 0
        self._running = 0
        self._stopped: Outcome | None = None
        self._progress = self._useful = 0
        self._on_end: OnEnd | None = on_end
        self._changed = threading.Condition()

    @property
    def queued_bytes(self) -> int:
        """Bytes that this prefetch asks for."""
        return len(self._digests) * self._pages.page_bytes

    @property
    def progress(self) -> int:
        """Pages from the start that are ready, without a gap."""
        return self._progress

    @property
    def done(self) -> bool:
        """Nothing of it is running or will run: the buffers are the caller's again."""
        with self._changed:
            return self._is_done()

    def cancel(self) -> None:
        """Begin no further chunk. Returns at once; `wait` says when the buffers are free."""
        self._stop(CANCELLED)

    def wait(self, timeout_ms: float | None = None) -> list[Outcome] | None:
        """The outcomes once done; None if it is still under way after `timeout_ms`."""
        with self._changed:
            limit_s = None if timeout_ms is None else timeout_ms / 1000
            if not self._changed.wait_for(self._is_done, limit_s):
                return None
            rest = AFTER_A_MISS if self._stopped is None else self._stopped
            return [rest if outcome is None else outcome for outcome in self._outcomes]

    def _is_done(self) -> bool:
        return not self._running and (self._stopped is not None or self._next == len(self._starts))

    def _stop(self, why: Outcome) -> None:
        with self._changed:
            if self._stopped is None and self._next < len(self._starts):
                self._stopped, self._useful = why, self._progress
            self._end()
            self._changed.notify_all()

    def _end(self) -> None:
        """Tell, once, what became of the pages: what was loaded before it was cancelled, without
        a gap, counts as used; what was loaded otherwise was wasted."""
        on_end = self._on_end
        if on_end is None or not self._is_done():
            return
        self._on_end = None
        cancelled = self._stopped is CANCELLED
        loaded = sum(map(bool, self._outcomes))
        untried = self._outcomes.count(None)
        used = self._useful if cancelled else self._progress
        on_end(
            ("prefetch.used", used),
            ("prefetch.wasted", loaded - used),
            ("prefetch.cancelled", untried if cancelled else 0),
            ("prefetch.unfulfilled", len(self._outcomes) - loaded - untried * cancelled),
        )

    def _take(self) -> slice | None:
        """The next chunk to read; None if there is none."""
        with self._changed:
            if self._stopped is not None or self._next == len(self._starts):
                return None
            start = self._starts[self._next]
            self._next += 1
            self._running += 1
            return slice(start, start + self._chunk_pages)

    def _run(self, part: slice, load: Load) -> int:
        """Read one chunk; its bytes. Whatever is raised becomes the outcome of its pages."""
        digests, pages = self._digests[part], self._pages[part]
        try:
            outcomes = load(digests, pages, self.deadline)
        except HiCacheError as error:
            outcomes = [miss(Reason.IO_ERROR, str(error))] * len(digests)
        except Exception as error:
            outcomes = [miss(Reason.IO_ERROR, repr(error))] * len(digests)
        with self._changed:
            self._outcomes[part] = outcomes
            self._running -= 1
            while self._progress < len(self._outcomes) and self._outcomes[self._progress]:
                self._progress += 1
            if not all(outcomes) and self._stopped is None and self._next < len(self._starts):
                self._stopped = AFTER_A_MISS
            self._end()
            self._changed.notify_all()
        return sum(map(bool, outcomes)) * pages.page_bytes


class Prefetcher:
    """The worker threads that all prefetches of one store share; made at the first one."""

    def __init__(
        self,
        load: Load,
        depth: Depth,
        chunk_pages: int,
        max_queued_bytes: int,
        on_end: OnEnd = lambda *counts: None,
    ) -> None:
        """`on_end` is told what became of the pages of each prefetch, and does not wait."""
        self._load = load
        self._depth = depth
        self._chunk_pages = chunk_pages
        self._max_queued_bytes = max_queued_bytes
        self._on_end = on_end
        self._queue: list[tuple[int, int, PrefetchHandle]] = []
        self._order = itertools.count()
        self._wake = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._closed = False
        self._process = os.getpid()
        self.queued_bytes = 0

    def submit(
        self, digests: Sequence[bytes], pages: Pages, deadline: Deadline, priority: Priority
    ) -> PrefetchHandle:
        """Queue a prefetch. One that does not fit is answered at once, as skipped: queue full.

        Raises StorageClosed; StorageUnavailable where no thread can be started.
        """
        handle = PrefetchHandle(digests, pages, deadline, self._chunk_pages, self._on_end)
        with self._wake:
            if self._closed or os.getpid() != self._process:
                raise StorageClosed("the page store is closed, or belongs to the parent process")
            self._hire()
            if (
                self.queued_bytes
                and self.queued_bytes + handle.queued_bytes > self._max_queued_bytes
            ):
                handle._stop(QUEUE_FULL)
                return handle
            self.queued_bytes += handle.queued_bytes
            heapq.heappush(self._queue, (_RANK[priority], next(self._order), handle))
            self._wake.notify_all()
        return handle

    def close(self) -> None:
        """Cancel what is queued; chunks being read end by their deadline."""
        with self._wake:
            self._closed = True
            for _, _, handle in self._queue:
                handle.cancel()
            self._queue.clear()
            self.queued_bytes = 0
            self._wake.notify_all()

    def _hire(self) -> None:
        while len(self._threads) < self._depth.most:
            name = f"hicache-prefetch-{len(self._threads)}"
            thread = threading.Thread(target=self._work, name=name, daemon=True)
            try:
                thread.start()
            except RuntimeError as error:  # the process may have no more threads
                if self._threads:
                    return
                raise StorageUnavailable(f"no thread to prefetch with: {error}") from None
            self._threads.append(thread)

    def _work(self) -> None:
        while True:
            with self._wake:
                self._wake.wait_for(self._ready)
                if self._closed:
                    return
                handle, part = self._pick()
                if part is None:
                    continue
                self._running += 1
            with self._depth.measured() as moved:
                moved.bytes = handle._run(part, self._load)
            with self._wake:
                self._running -= 1
                self._wake.notify_all()

    def _ready(self) -> bool:
        return self._closed or bool(self._queue and self._running < self._depth.now)

    def _pick(self) -> tuple[PrefetchHandle, slice | None]:
        """The next chunk of the most urgent prefetch; a prefetch without one leaves the queue."""
        handle = self._queue[0][2]
        part = handle._take()
        if part is None:
            heapq.heappop(self._queue)
            self.queued_bytes -= handle.queued_bytes
        return handle, part
