"""The engine over 3FS's rings: one ring client at a time, replaced when its daemon has died."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, StorageClosed, StorageUnavailable
from hicache_backends.io.engine import Engine, IoResult, ReadBatch, WriteBatch
from hicache_backends.io.posix import check_batch
from hicache_backends.io.select import open_engine
from hicache_backends.pages import Pages
from hicache_backends.segment.calls import Calls, abandon_after_fork
from hicache_backends.usrbio.clients import CLIENTS, open_client
from hicache_backends.usrbio.memory import SharedMemory, sweep
from hicache_backends.usrbio.mount import Mount, find_mount
from hicache_backends.usrbio.ring import RingClient, RingSettings
from hicache_backends.usrbio.selftest import self_test

_CONNECT_MS = 10_000.0
_RETRY_S = 0.5
_NEVER = Deadline((1 << 63) - 1)
"""When a call here is overdue: rings are left by the deadline whatever happens."""

_log = logging.getLogger(__name__)


class UsrbioEngine(Engine):
    """Results are those of `Engine`, and of `usrbio.ring.RingClient` where the daemon fails.

    `directory` lies on a 3FS mount and is writable: the self-test writes a page there and reads
    it back. `client` is a name of `usrbio.clients`. A call that finds the daemon dead connects
    anew, at most twice a second, and raises StorageUnavailable with the reason where that fails;
    so does the constructor. Which other engine to take then is up to the caller.
    """

    name = "usrbio"

    def __init__(
        self,
        directory: str,
        settings: RingSettings | None = None,
        *,
        client: str = "auto",
        connect_timeout_ms: float = _CONNECT_MS,
    ) -> None:
        if client not in CLIENTS:
            raise ConfigError(f"the ring client is one of {', '.join(CLIENTS)}, not {client!r}")
        self._directory = directory
        self._settings = settings or RingSettings()
        self._kind = client
        self._memory_engine = open_engine("auto")
        self._calls = Calls()
        self._counts = {"connects": 0, "connect_failures": 0, "memories": 0}
        self._lock = threading.Lock()
        self._connecting: _Attempt | None = None
        self._client: RingClient | None = None
        self._closed = False
        try:
            self._connected(Deadline.after_ms(connect_timeout_ms))
        except BaseException:
            self._closed = True  # an attempt that still runs lets go of what it gets
            raise
        abandon_after_fork(self)

    def read(self, batch: ReadBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        """`threads` does not count: the daemon has its own."""
        check_batch(batch, threads)
        flight = self._calls.begin(_NEVER)
        try:
            return self._connected(deadline).read(batch, deadline)
        finally:
            flight.end()

    def write(self, batch: WriteBatch, deadline: Deadline, *, threads: int = 1) -> IoResult:
        """`threads` does not count: the daemon has its own."""
        check_batch(batch, threads)
        flight = self._calls.begin(_NEVER)
        try:
            return self._connected(deadline).write(batch, deadline)
        finally:
            flight.end()

    def checksum(self, pages: Pages, digests: bytes) -> NDArray[np.uint64]:
        return self._memory_engine.checksum(pages, digests)

    def copy(self, source: Pages, target: Pages) -> None:
        self._memory_engine.copy(source, target)

    def allocate(self, size: int, *, timeout_ms: float = _CONNECT_MS) -> SharedMemory:
        """Memory whose pages move without a copy, as long as this life of the daemon lasts; from
        then on they are staged: memory without a name cannot be registered a second time. It
        stays mapped until then, or until the engine is closed. Raises StorageUnavailable."""
        deadline = Deadline.after_ms(timeout_ms)
        client = self._connected(deadline)
        memory = SharedMemory(size)
        try:
            client.register(memory, deadline)
        finally:
            memory.unlink()
        self._counts["memories"] += 1
        return memory

    def writes_in_doubt(self) -> set[tuple[int, int]]:
        """Inode and offset of each write that timed out and may still happen. A place of these
        is not written again before it has left the set: the late one could come after."""
        client = self._client
        if client is None or self._calls.forked:
            return set()
        return client.writes_in_doubt()

    @property
    def mount(self) -> Mount | None:
        """Where the rings are, None while there is no connection. Its device changes with a
        remount: files that were opened before have to be opened again."""
        client = self._client
        return client.mount if client else None

    def stats(self) -> dict[str, int | str]:
        """Counters of this connection, and how many there were."""
        client = self._client
        facts: dict[str, int | str] = {**self._counts}
        if client and not self._calls.forked:  # a child has no business in its parent's rings
            facts |= {"client": client.name, **client.stats()}
        return facts

    def close(self, timeout_ms: float = 5000) -> None:
        """Deregister everything; calls in flight end at once. Closing again is fine."""
        if self._calls.forked:
            return  # another thread of the parent may have held the lock as it forked
        with self._lock:
            self._closed = True
            client, self._client, self._connecting = self._client, None, None
        self._calls.close(0)
        if client:
            client.close(timeout_ms)
        self._calls.close(timeout_ms)

    def abandon(self) -> None:
        """In a forked child: the parent's connection ends with the parent."""
        if self._client:
            self._client.abandon()

    def _connected(self, deadline: Deadline) -> RingClient:
        self._calls.check()
        client = self._client
        if client and client.usable:
            return client
        with self._lock:
            if self._client is not client and self._client and self._client.usable:
                return self._client
            attempt = self._connecting
            if attempt is None or attempt.is_stale():
                attempt = self._connecting = _Attempt(self._connect)
        return attempt.wait(deadline)

    def _connect(self) -> RingClient:
        """Runs on a thread of its own: a hung daemon holds it, and no call."""
        old, self._client = self._client, None
        if old:
            _log.warning("the 3FS daemon at %s has gone: connecting anew", old.mount.point)
            old.close(0)
        try:
            deadline = Deadline.after_ms(_CONNECT_MS)
            sweep()
            mount = find_mount(self._directory)
            client = open_client(self._kind, mount, self._settings, deadline)
            try:
                self_test(client, self._directory, deadline)
            except BaseException:
                client.close(1000)
                raise
        except BaseException:
            self._counts["connect_failures"] += 1
            raise
        with self._lock:
            if not self._closed:
                self._counts["connects"] += 1
                self._client = client
                return client
        client.close(1000)
        raise StorageClosed("the engine was closed meanwhile")


class _Attempt:
    """One try to connect, awaited by any number of calls."""

    def __init__(self, connect: Callable[[], RingClient]) -> None:
        self._connect = connect
        self._done = threading.Event()
        self._client: RingClient | None = None
        self._error: BaseException | None = None
        self._ended_s = 0.0
        try:
            threading.Thread(target=self._run, name="usrbio-connect", daemon=True).start()
        except RuntimeError as error:  # the system has no thread left; the next try may get one
            self._error = error
            self._ended_s = time.monotonic()
            self._done.set()

    def is_stale(self) -> bool:
        """Whether it is time for another: it worked once and no longer, or failed a while ago."""
        if not self._done.is_set():
            return False
        return self._error is None or time.monotonic() - self._ended_s > _RETRY_S

    def wait(self, deadline: Deadline) -> RingClient:
        """Raises StorageUnavailable."""
        if not self._done.wait(deadline.remaining_ms() / 1000):
            raise StorageUnavailable("the 3FS daemon does not answer; is it hung?")
        if self._client is None:
            raise StorageUnavailable(str(self._error)) from self._error
        return self._client

    def _run(self) -> None:
        try:
            self._client = self._connect()
        except BaseException as error:
            self._error = error
        self._ended_s = time.monotonic()
        self._done.set()
