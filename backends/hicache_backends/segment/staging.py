"""Two ways to do the I/O of a call: in the caller's memory, or in a copy that may be late."""

from __future__ import annotations

import mmap
import queue
import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import Engine
from hicache_backends.outcomes import Outcome
from hicache_backends.pages import Pages
from hicache_backends.segment.segment import slot_bytes

_AREAS = 4


def always() -> bool:
    """For a caller that waits until the end."""
    return True


class Transfer(Protocol):
    """The I/O of one call. `run` ends the call; `end` instead of it gives the call up.

    `in_time` is asked when the I/O is done: False where the caller went back, and was told that
    nothing was read or stored.
    """

    def run(self, pages: Pages, in_time: Callable[[], bool] = always) -> list[Outcome]: ...

    def end(self) -> None: ...


class Mover(Protocol):
    """How transfers are run."""

    def read(self, transfer: Transfer, pages: Pages, deadline: Deadline) -> list[Outcome] | None:
        """Read into `pages`; None if the call must go back without knowing."""
        ...

    def write(self, transfer: Transfer, pages: Pages, deadline: Deadline) -> list[Outcome] | None:
        """Write `pages`; None if the call must go back without knowing."""
        ...


class ZeroCopy:
    """In the caller's memory and thread: a call stays for as long as the kernel holds its I/O."""

    def read(self, transfer: Transfer, pages: Pages, deadline: Deadline) -> list[Outcome] | None:
        return transfer.run(pages)

    def write(self, transfer: Transfer, pages: Pages, deadline: Deadline) -> list[Outcome] | None:
        return transfer.run(pages)


class Staged:
    """In memory of its own, on a thread made for the call: the caller goes back at its deadline,
    and the memory is not used again before the kernel has let go of it. At most four at once."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._areas: queue.SimpleQueue[_Area] = queue.SimpleQueue()
        for _ in range(_AREAS):
            self._areas.put(_Area())

    def read(self, transfer: Transfer, pages: Pages, deadline: Deadline) -> list[Outcome] | None:
        area = self._take(transfer, deadline)
        staged = self._staged(transfer, area, pages, fill=False)
        if area is None or staged is None:
            return None
        outcomes = self._run(transfer, staged, area, deadline)
        if outcomes is None:
            return None
        try:
            rows = [i for i, outcome in enumerate(outcomes) if outcome.ok]
            if rows:
                self._engine.copy(staged[rows], pages[rows])
        finally:
            self._areas.put(area)
        return outcomes

    def write(self, transfer: Transfer, pages: Pages, deadline: Deadline) -> list[Outcome] | None:
        area = self._take(transfer, deadline)
        staged = self._staged(transfer, area, pages, fill=True)
        if area is None or staged is None:
            return None
        outcomes = self._run(transfer, staged, area, deadline)
        if outcomes is not None:
            self._areas.put(area)
        return outcomes

    def _take(self, transfer: Transfer, deadline: Deadline) -> _Area | None:
        try:
            return self._areas.get(timeout=deadline.remaining_ms() / 1000)
        except queue.Empty:
            transfer.end()
            return None

    def _staged(
        self, transfer: Transfer, area: _Area | None, pages: Pages, *, fill: bool
    ) -> Pages | None:
        """Memory for so many pages, with their bytes if `fill`; None, and the call is given up,
        where there is none."""
        if area is None:
            return None
        try:
            staged = area.pages(len(pages), pages.page_bytes)
            if fill and len(pages):
                self._engine.copy(pages, staged)
        except BaseException as error:
            self._areas.put(area)
            transfer.end()
            if isinstance(error, (OSError, MemoryError)):
                return None
            raise
        return staged

    def _run(
        self, transfer: Transfer, staged: Pages, area: _Area, deadline: Deadline
    ) -> list[Outcome] | None:
        """The outcomes, or None when late: then the thread gives the area back."""
        task = _Task(transfer, staged)
        worker = threading.Thread(target=task.work, args=(self._areas, area), daemon=True)
        try:
            worker.start()
        except RuntimeError:  # the system has no thread left
            task.work(self._areas, area)
        if not task.done.wait(deadline.remaining_ms() / 1000) and task.abandon():
            return None
        task.done.wait()
        if task.error:
            self._areas.put(area)
            raise task.error
        return task.outcomes


class _Task:
    """One transfer on its thread."""

    def __init__(self, transfer: Transfer, staged: Pages) -> None:
        self._transfer = transfer
        self._staged = staged
        self._lock = threading.Lock()
        self._abandoned = False
        self._counts = False
        self.done = threading.Event()
        self.outcomes: list[Outcome] = []
        self.error: BaseException | None = None

    def work(self, areas: queue.SimpleQueue[_Area], area: _Area) -> None:
        try:
            self.outcomes = self._transfer.run(self._staged, self.in_time)
        except BaseException as error:
            self.error = error
        with self._lock:
            self.done.set()
            if self._abandoned:
                areas.put(area)

    def in_time(self) -> bool:
        """Whether the caller is still there; then it stays until the outcomes are known."""
        with self._lock:
            self._counts = not self._abandoned
            return self._counts

    def abandon(self) -> bool:
        """Wait no longer; False if the I/O has just ended."""
        with self._lock:
            self._abandoned = not (self._counts or self.done.is_set())
            return self._abandoned


class _Area:
    """Memory that grows to the largest batch it served."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)

    def pages(self, count: int, page_bytes: int) -> Pages:
        """Memory for `count` pages, each aligned as a slot."""
        stride = slot_bytes(page_bytes) if count else 0
        if len(self._memory) < count * stride:
            self._memory = mmap.mmap(-1, count * stride)
        start: int = np.frombuffer(self._memory, np.uint8).__array_interface__["data"][0]
        addresses = np.array([start + i * stride for i in range(count)], dtype=np.uint64)
        sizes = np.full((count, 1), page_bytes, dtype=np.uint64)
        return Pages(addresses.reshape(-1, 1), sizes, (self._memory,))
