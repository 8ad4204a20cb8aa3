"""Mooncake's client, used so that it neither freezes, crashes nor outlives its welcome.

Its set-up and its end hold the GIL, most calls outside of them crash the process, so do calls
during its end, and a fork leaves a child that hangs. Calls in between give up the GIL.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageClosed, StorageUnavailable
from hicache_backends.mooncake.codes import LATE, TRANSFER_FAILED
from hicache_backends.mooncake.options import LIMITS, Cluster
from hicache_backends.mooncake.reach import check_master
from hicache_backends.mooncake.session import Session
from hicache_backends.pages import Pages

MAX_PIECES = 1024
"""Of one call. Mooncake fails or hangs beyond about 2,048 transfers to one peer."""
_FAILURES = 3
_REPLACE_S = 30.0
_MOST_RETIRED = 4

_log = logging.getLogger(__name__)


class Client:
    """A process's client of one cluster. Made by `connect`; thread safe.

    Calls give one code a key, as Mooncake does: see `codes`. One that failed several times for a
    peer is replaced by another client object, since such objects can go on failing; so is, by
    `renew`, one that does not reach its master. The first object gives the cluster this process's
    memory until the client is closed, replaced or not; those after it give none.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.users = 0
        self.replaced = 0
        self._process = os.getpid()
        self._session: Session | None = Session(cluster)
        self._retired: list[Session] = []
        self._registered: dict[int, int] = {}
        self._ranges = np.empty((0, 2), np.uint64)
        self._failures = 0
        self._tried_s = time.monotonic()
        self._lock = threading.Lock()  # never held while the master is waited for
        self._replacing = threading.Lock()  # taken before the other

    def get_into(self, keys: Sequence[str], pages: Pages, deadline: Deadline) -> list[int]:
        """Bytes read into each page, or a code."""
        return self._move("batch_get_into", keys, pages, deadline)

    def put_from(self, keys: Sequence[str], pages: Pages, deadline: Deadline) -> list[int]:
        """0 for each page stored, or a code. A key that is there keeps its bytes; one whose
        writer died gives 0 too and is not readable: ask `exists`."""
        return self._move("batch_put_from", keys, pages, deadline)

    def exists(self, keys: Sequence[str], deadline: Deadline) -> list[int]:
        """1, 0 or a code for each key. Takes a lease."""
        return self._each(keys, deadline, lambda store, part: store.batch_is_exist(part))

    def remove(self, keys: Sequence[str], deadline: Deadline) -> list[int]:
        """0 or a code for each key, leased or not."""
        return self._each(keys, deadline, lambda store, part: store.batch_remove(part, True))

    def size(self, key: str) -> int:
        """Bytes of an object, or a code. Takes a lease."""
        with self._current().inside() as store:
            found: int = store.get_size(key)
        return found

    def upsert(self, key: str, data: bytes) -> int:
        """Store an object in any case; 0 or a code."""
        memory = Pages.from_buffers([data], writable=False)
        with self._current().inside() as store:
            result: int = store.upsert_from(key, int(memory.addresses[0, 0]), len(data))
        return result

    def healthy(self) -> bool:
        """Whether the client says that it reaches its master."""
        with self._current().inside() as store:
            return bool(store.health_check() == 0)

    def renew(self, seen: int, deadline: Deadline) -> bool:
        """Whether another client object serves than the one whose call gave NO_MASTER when
        `replaced` was `seen`. After a restart of the master each idle connection fails once."""
        if not self._replacing.acquire(timeout=deadline.remaining_ms() / 1000):
            return self.replaced != seen
        try:
            return self.replaced != seen or self._replace(deadline, make_room=True)
        finally:
            self._replacing.release()

    def register(self, address: int, size: int) -> bool:
        """Make memory known to the transport, so that it is read and written in place."""
        with self._lock, self._current().inside() as store:
            if store.register_buffer(address, size):
                return False
            self._registered[address] = size
            self._sort()
        return True

    def unregister(self, address: int) -> None:
        """Memory that was registered is about to go."""
        with self._lock:
            if self._registered.pop(address, None) is not None:
                self._sort()
                for session in [*self._retired, *filter(None, [self._session])]:
                    with session.inside() as store:
                        store.unregister_buffer(address)

    def reaches(self, pages: Pages) -> bool:
        """Whether all of these pages lie in registered memory."""
        ranges = self._ranges
        if not len(ranges) or not len(pages):
            return False
        starts = pages.addresses.ravel()
        rows = np.searchsorted(ranges[:, 0], starts, side="right").astype(np.int64) - 1
        ends = starts + pages.sizes.ravel()
        return bool((rows >= 0).all() and (ends <= ranges[rows, 1]).all())

    def close(self, timeout_s: float = 2.0) -> None:
        """End every client object that can be ended."""
        with self._lock:
            sessions = [*self._retired, *filter(None, [self._session])]
            self._session, self._retired = None, []
        if os.getpid() == self._process:
            for session in sessions:
                session.close(self.cluster, timeout_s)
        else:
            for session in sessions:
                session.leave()  # in a fork they may be neither used nor ended

    def _move(self, name: str, keys: Sequence[str], pages: Pages, deadline: Deadline) -> list[int]:
        """A call of Mooncake's that moves pages, a bounded number of pieces at a time."""
        most = max(1, MAX_PIECES // pages.pieces)
        codes: list[int] = []
        for start in range(0, len(keys), most):
            if deadline.passed:
                codes += [LATE] * (len(keys) - start)
                break
            part = slice(start, start + most)
            where, sizes = pages.addresses[part].tolist(), pages.sizes[part].tolist()
            with self._current().inside() as store:
                if pages.pieces == 1:
                    flat = [row[0] for row in where], [row[0] for row in sizes]
                    codes += getattr(store, name)(list(keys[part]), *flat)
                else:
                    codes += getattr(store, f"{name}_multi_buffers")(list(keys[part]), where, sizes)
        self._judge(codes)
        return codes

    def _each(
        self,
        keys: Sequence[str],
        deadline: Deadline,
        call: Callable[[Any, list[str]], list[int]],
    ) -> list[int]:
        codes: list[int] = []
        for start in range(0, len(keys), MAX_PIECES):
            if deadline.passed:
                return codes + [LATE] * (len(keys) - start)
            with self._current().inside() as store:
                codes += call(store, list(keys[start : start + MAX_PIECES]))
        return codes

    def _current(self) -> Session:
        session = self._session
        if session is None:
            raise StorageClosed("the Mooncake client is closed")
        if os.getpid() != self._process:
            raise StorageClosed("the Mooncake client belongs to the parent of this fork")
        return session

    def _judge(self, codes: Sequence[int]) -> None:
        """Count calls that failed for a peer; replace the client object after several."""
        if TRANSFER_FAILED not in codes:
            self._failures = 0
            return
        self._failures += 1
        if self._failures < _FAILURES or time.monotonic() - self._tried_s < _REPLACE_S:
            return
        if self._replacing.acquire(blocking=False):  # else it is being replaced
            try:
                self._tried_s, self._failures = time.monotonic(), 0
                self._replace()
            finally:
                self._replacing.release()

    def _replace(self, deadline: Deadline | None = None, *, make_room: bool = False) -> bool:
        """Whether it was done; `_replacing` is held. `make_room`: if need be, end a retired one."""
        full = len(self._ending()) >= _MOST_RETIRED
        if self._session is None or (full and not make_room):
            return False
        try:
            check_master(self.cluster, deadline)
            if full:
                self._end_one()
            fresh = Session(dataclasses.replace(self.cluster, segment_bytes=0))
        except StorageUnavailable as error:
            _log.warning("the Mooncake client fails and can't be replaced: %s", error)
            return False
        if not self._adopt(fresh):
            fresh.close(self.cluster, 0)
            return False
        _log.warning("calls failed: the Mooncake client was replaced")
        return True

    def _ending(self) -> list[Session]:
        """Retired ones that may be ended: the one that gives memory goes on to give it."""
        return [session for session in self._retired if not session.gives_memory]

    def _end_one(self) -> None:
        """Raises StorageUnavailable if a call is inside each one; `check_master` has been called.
        It holds the GIL meanwhile."""
        with self._lock:
            idle = next((session for session in self._ending() if session.shut()), None)
            if idle is None:
                raise StorageUnavailable("a call stays inside each one that was replaced before")
            self._retired.remove(idle)
        idle.end()

    def _adopt(self, fresh: Session) -> bool:
        """Whether it serves from now on: the client may have been closed meanwhile."""
        with self._lock:
            if self._session is None:
                return False
            with fresh.inside() as store:
                for address, size in self._registered.items():
                    store.register_buffer(address, size)
            self._retired.append(self._session)
            self._session = fresh
            self._tried_s, self._failures = time.monotonic(), 0
            self.replaced += 1
        return True

    def _sort(self) -> None:
        spans = sorted((a, a + size) for a, size in self._registered.items())
        self._ranges = np.array(spans, np.uint64).reshape(-1, 2)


_clients: dict[Cluster, Client] = {}
_connecting = threading.Lock()


def connect(cluster: Cluster) -> Client:
    """This process's client of the cluster; give it back by `disconnect`.

    Raises MissingExtra, StorageUnavailable.
    """
    with _connecting:
        client = _clients.get(cluster)
        if client is None:
            for name, value in LIMITS.items():
                os.environ.setdefault(name, value)
            check_master(cluster)
            client = _clients[cluster] = Client(cluster)
            if cluster.transport != cluster.protocol:
                _log.warning("mooncake.protocol is rdma, but this host has no device: TCP runs")
        client.users += 1
        return client


def disconnect(client: Client) -> None:
    """A user is done; the last one ends the client."""
    with _connecting:
        client.users -= 1
        if client.users:
            return
        _clients.pop(client.cluster, None)
        client.close()
