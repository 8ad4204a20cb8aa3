"""Calls that may hang, on threads and in memory of their own: the caller leaves at its deadline."""

from __future__ import annotations

import contextlib
import mmap
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageHung
from hicache_backends.objects.store import ObjectStore
from hicache_backends.objects.trailer import TRAILER, TRAILER_BYTES
from hicache_backends.pages import Pages
from hicache_backends.segment.format import ALIGNMENT


class Area:
    """Memory for objects, page and trailer in a row; it grows to the largest batch it served."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._memory = _memory(mmap.PAGESIZE)
        self._start = _address(self._memory)

    def objects(self, count: int, page_bytes: int) -> tuple[Pages, Pages, NDArray[np.void]]:
        """`count` objects as the store moves them, their pages, and their trailers."""
        size = page_bytes + TRAILER_BYTES
        stride = -(-size // ALIGNMENT) * ALIGNMENT
        self._reserve(count * stride)
        addresses = self._start + np.arange(count, dtype=np.uint64) * np.uint64(stride)
        trailers: NDArray[np.void] = np.ndarray(
            (count,), TRAILER, self._memory, page_bytes, (stride,)
        )
        return self._pages(addresses, size), self._pages(addresses, page_bytes), trailers

    def behind(self, pages: Pages) -> tuple[Pages, NDArray[np.void]]:
        """Objects whose pages lie elsewhere and whose trailers lie here."""
        count = len(pages)
        self._reserve(count * TRAILER_BYTES)
        trailers: NDArray[np.void] = np.ndarray((count,), TRAILER, self._memory)
        places = self._start + np.arange(count, dtype=np.uint64) * np.uint64(TRAILER_BYTES)
        own = self._pages(places, TRAILER_BYTES)
        objects = Pages(
            np.concatenate([pages.addresses, own.addresses], axis=1),
            np.concatenate([pages.sizes, own.sizes], axis=1),
            (pages.keep, own.keep),
            pages.writable,
        )
        return objects, trailers

    def release(self) -> None:
        """The store needs to know the memory no longer."""
        self._store.unregister(self._start)

    def _reserve(self, size: int) -> None:
        if len(self._memory) < size:
            self._store.unregister(self._start)
            self._memory = _memory(size)
            self._start = _address(self._memory)
            self._store.register(self._start, size)

    def _pages(self, addresses: NDArray[np.uint64], size: int) -> Pages:
        sizes = np.full((len(addresses), 1), size, np.uint64)
        return Pages(addresses.reshape(-1, 1), sizes, (self._memory,))


class Call:
    """One piece of work, and whether somebody still waits for it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._abandoned = False
        self.ended = threading.Event()
        self.error: BaseException | None = None

    @contextmanager
    def attended(self) -> Iterator[bool]:
        """Whether the caller is there; if so it stays until the block is left, which therefore
        does nothing but use the caller's memory and tell it what happened."""
        with self._lock:
            yield not self._abandoned

    def abandon(self) -> None:
        """Wait no longer."""
        with self._lock:
            self._abandoned = not self.ended.is_set()

    @property
    def abandoned(self) -> bool:
        return self._abandoned


class Lane:
    """Memory for calls, and the thread that makes them from the first one on."""

    def __init__(self, store: ObjectStore) -> None:
        self.area = Area(store)
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._begun = False

    def hand(self, work: Callable[[], None]) -> bool:
        """Have it done; False where the system has no thread left."""
        if not self._begun:
            self._begun = _start(self._serve)
        if self._begun:
            self._work.put(work)
        return self._begun

    def release(self) -> None:
        """No call is in here, and none follows."""
        self._work.put(None)
        self.area.release()

    def _serve(self) -> None:
        while (work := self._work.get()) is not None:
            work()
            del work  # and with it the caller's pages


class Lanes:
    """At most `count` calls at once. One that is late keeps its lane until it ends.

    The lane that was used last is used next: its memory is in the caches, its thread is there.
    """

    def __init__(self, store: ObjectStore, count: int) -> None:
        self._free: queue.LifoQueue[Lane] = queue.LifoQueue()
        for _ in range(count):
            self._free.put(Lane(store))
        self._count = count
        self._late = 0
        self._guard = threading.Lock()

    @property
    def late(self) -> int:
        """Calls that nobody waits for and that have not ended."""
        return self._late

    def run(
        self,
        work: Callable[[Area, Call], None],
        deadline: Deadline,
        *,
        stay: bool = False,
        give_up: Callable[[], None] = lambda: None,
    ) -> None:
        """Do the work, on a thread; the caller leaves at the deadline, and the work goes on.

        `stay`: in the caller's thread, however long it takes. `give_up` is called where the work
        can't begin in time. Raises what the work raised, and StorageHung where every lane holds
        a late call.
        """
        call = Call()
        try:
            if self._late >= self._count:
                raise StorageHung("every call that may be made at once is late already")
            lane = self._free.get(timeout=deadline.remaining_ms() / 1000)
        except (StorageHung, queue.Empty) as error:
            give_up()
            if isinstance(error, StorageHung):
                raise
            return
        if stay or not lane.hand(partial(self._work, work, lane, call)):
            self._work(work, lane, call)
        if not call.ended.wait(deadline.remaining_ms() / 1000):
            with self._guard:
                call.abandon()
                self._late += call.abandoned
        if not call.abandoned and call.error is not None:
            raise call.error

    def drain(self, timeout_ms: float) -> bool:
        """Whether every call, late ones too, has ended by then; no call may be made any more."""
        end = time.monotonic() + timeout_ms / 1000
        try:
            for _ in range(self._count):
                self._free.get(timeout=max(0.0, end - time.monotonic())).release()
                self._count -= 1
        except queue.Empty:
            return False
        return True

    def _work(self, work: Callable[[Area, Call], None], lane: Lane, call: Call) -> None:
        try:
            work(lane.area, call)
        except BaseException as error:
            call.error = error
        with self._guard:
            self._late -= call.abandoned
            self._free.put(lane)  # first, for a caller that comes again at once
            call.ended.set()


def _start(target: Callable[[], None]) -> bool:
    try:
        threading.Thread(target=target, daemon=True).start()
    except RuntimeError:  # the system has no thread left
        return False
    return True


def _memory(size: int) -> mmap.mmap:
    """In huge pages where the system has them: a batch goes through it twice."""
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(AttributeError, OSError):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


def _address(memory: mmap.mmap) -> int:
    start: int = np.frombuffer(memory, np.uint8).__array_interface__["data"][0]
    return start
