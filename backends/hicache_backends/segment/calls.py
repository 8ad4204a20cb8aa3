"""The calls in flight on a store: which are overdue, and when the last one has ended."""

from __future__ import annotations

import itertools
import os
import threading
import time
import weakref
from typing import Protocol

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageClosed, StorageHung

_GRACE_NS = 200_000_000
"""How long after its deadline a call may still be at its I/O before the store counts as hung."""


class Calls:
    """Refuses calls once the store is closed, in a forked child, and while an I/O is stuck.

    Takes no lock on the way in and out: single dict operations are atomic.
    """

    def __init__(self) -> None:
        self._deadlines: dict[int, int] = {}
        self._ids = itertools.count()
        self._closed = False
        self._ended = threading.Condition()
        self._process = os.getpid()

    def check(self) -> None:
        """Raises StorageClosed or StorageHung."""
        if self.forked:
            raise StorageClosed("the store belongs to the process that this one was forked from")
        if self._closed:
            raise StorageClosed("the store is closed")
        if self._deadlines and self.hung:
            raise StorageHung("an earlier I/O has not come back from the kernel")

    def begin(self, deadline: Deadline) -> Flight:
        """A call sets out. Raises as `check`."""
        self.check()
        flight = Flight(self, next(self._ids))
        self._deadlines[flight.id] = deadline.at_ns
        if self._closed:  # by another thread, since the check
            self.end(flight)
            raise StorageClosed("the store is closed")
        return flight

    def end(self, flight: Flight) -> None:
        """A call is over. Ending it again is fine."""
        self._deadlines.pop(flight.id, None)
        if self._closed:
            with self._ended:
                self._ended.notify_all()

    @property
    def forked(self) -> bool:
        """Whether this is a child of the process that opened the store."""
        return os.getpid() != self._process

    @property
    def in_flight(self) -> int:
        return len(self._deadlines)

    @property
    def hung(self) -> bool:
        """Whether a call is overdue."""
        horizon_ns = time.monotonic_ns() - _GRACE_NS
        return any(at_ns < horizon_ns for at_ns in list(self._deadlines.values()))

    def close(self, timeout_ms: float) -> bool:
        """Refuse calls from now on; whether all that were in flight have ended by then."""
        self._closed = True
        if self.forked:
            return True
        with self._ended:
            return self._ended.wait_for(lambda: not self._deadlines, timeout_ms / 1000)


class Flight:
    """One call between its begin and its end."""

    __slots__ = ("_calls", "id")

    def __init__(self, calls: Calls, number: int) -> None:
        self._calls = calls
        self.id = number

    def end(self) -> None:
        self._calls.end(self)


class Forkable(Protocol):
    """Something whose descriptors a forked child must not keep."""

    def abandon(self) -> None:
        """Close the descriptors; called in the child."""
        ...


_open: weakref.WeakSet[Forkable] = weakref.WeakSet()
_registered: list[bool] = []


def abandon_after_fork(store: Forkable) -> None:
    """Have a forked child let go of the store, so that its locks die with the parent."""
    if not _registered:
        _registered.append(True)
        os.register_at_fork(after_in_child=_abandon_all)
    _open.add(store)


def _abandon_all() -> None:
    for store in _open:
        store.abandon()
