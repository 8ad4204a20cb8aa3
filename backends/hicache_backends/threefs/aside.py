"""Doing on a thread of its own what a hung mount may hold for ever."""

from __future__ import annotations

import errno
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from hicache_backends.deadline import Deadline

_MOST = 16
"""Threads that may be stuck at once; calls beyond fail at once."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class Aside:
    """Runs work that nobody must wait for longer than until a deadline."""

    def __init__(self) -> None:
        self._room = threading.BoundedSemaphore(_MOST)
        self._later: deque[Callable[[], object]] = deque()
        self._lock = threading.Lock()
        self._sweeping = False

    def run(
        self,
        work: Callable[[], _T],
        deadline: Deadline,
        late: Callable[[_T], object] = lambda result: None,
    ) -> _T:
        """The result of the work. Raises what it raises, and TimeoutError at the deadline: the
        work goes on, and `late` gets what comes of it."""
        if threading.current_thread().name == _NAME:
            return work()
        if not self._room.acquire(blocking=False):
            raise TimeoutError(errno.ETIMEDOUT, "the file system is hung")
        task = _Task(work, late, self._room.release)
        if not _started(task.run):
            self._room.release()
            raise TimeoutError(errno.ETIMEDOUT, "the system has no thread left")
        return task.result(deadline)

    def later(self, work: Callable[[], object]) -> None:
        """Do this in the background, one after another; errors do not matter."""
        with self._lock:
            self._later.append(work)
            if self._sweeping:
                return
            self._sweeping = True
        if not _started(self._sweep):
            self._sweeping = False  # whoever comes next does this, too

    def _sweep(self) -> None:
        """Until there is nothing left to do."""
        while True:
            with self._lock:
                if not self._later:
                    self._sweeping = False
                    return
                work = self._later.popleft()
            try:
                work()
            except Exception as error:
                _log.debug("in the background: %s", error)


_NAME = "hicache-aside"


def _started(work: Callable[[], None]) -> bool:
    """Whether the system had a thread for this."""
    try:
        threading.Thread(target=work, name=_NAME, daemon=True).start()
    except RuntimeError:
        return False
    return True


class _Task(Generic[_T]):
    """One piece of work: its result goes to whoever waits, or to `late`."""

    def __init__(
        self, work: Callable[[], _T], late: Callable[[_T], object], ended: Callable[[], None]
    ) -> None:
        self._work, self._late, self._ended = work, late, ended
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._given_up = False
        self._results: list[_T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        self._ended()
        with self._lock:
            self._done.set()
            if self._given_up and self._results:
                self._late(self._results[0])

    def result(self, deadline: Deadline) -> _T:
        if not self._done.wait(deadline.remaining_ms() / 1000):
            with self._lock:
                self._given_up = not self._done.is_set()
            if self._given_up:
                raise TimeoutError(errno.ETIMEDOUT, "the file system does not answer")
        if self._error:
            raise self._error
        return self._results[0]
