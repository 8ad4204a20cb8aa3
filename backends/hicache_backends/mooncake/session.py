"""One client object of Mooncake's: it is never ended while a call is inside."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hicache_backends.errors import StorageClosed, StorageUnavailable
from hicache_backends.mooncake.options import Cluster
from hicache_backends.mooncake.reach import check_master

_log = logging.getLogger(__name__)
_kept: list[Any] = []
"""Clients that cannot be ended: a call is inside, or their master is gone. Never destroyed."""


class Session:
    """One set-up client object of Mooncake's, and the calls inside it."""

    def __init__(self, cluster: Cluster) -> None:
        """Raises StorageUnavailable; `check_master` has been called."""
        from mooncake.store import MooncakeDistributedStore

        self.gives_memory = cluster.segment_bytes > 0
        self._store = MooncakeDistributedStore()
        result = self._store.setup(*cluster.setup())
        if result:
            raise StorageUnavailable(f"Mooncake's setup failed with {result} for {cluster.master}")
        self._inside = 0
        self._closed = False
        self._ended = threading.Condition()

    @contextmanager
    def inside(self) -> Iterator[Any]:
        """Mooncake's object, which is not ended meanwhile. Raises StorageClosed."""
        with self._ended:
            if self._closed:
                raise StorageClosed("the Mooncake client is closed")
            self._inside += 1
        try:
            yield self._store
        finally:
            with self._ended:
                self._inside -= 1
                self._ended.notify_all()

    def close(self, cluster: Cluster, timeout_s: float) -> None:
        """End it, unless a call stays inside, or the master is silent: that would freeze Python."""
        with self._ended:
            self._closed = True
            idle = self._ended.wait_for(lambda: not self._inside, timeout_s)
        try:
            if not idle:
                raise StorageUnavailable("a call is inside")
            check_master(cluster)
        except StorageUnavailable:
            self.leave()
            return
        self.end()

    def shut(self) -> bool:
        """Whether no call is inside; then none gets in any more."""
        with self._ended:
            self._closed = self._closed or not self._inside
            return self._closed

    def end(self) -> None:
        """It is shut; `check_master` has been called."""
        try:
            self._store.close()
        except RuntimeError as error:  # whatever C++ throws
            _log.warning("a Mooncake client did not end: %s", error)
            self.leave()

    def leave(self) -> None:
        """Leave it to the end of the process."""
        _kept.append(self._store)
