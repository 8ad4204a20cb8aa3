"""The one thread that registers memory with 3FS's daemon, and asks whether it is still there.

The daemon ties registrations to the thread that made them, and drops all of them when the last
descriptor of `iovs` that this thread opened is closed: so a process that is killed leaves nothing.
"""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.usrbio.layout import SUBMIT_LINK, semaphore_path
from hicache_backends.usrbio.memory import SharedMemory

_PROBE_INTERVAL_S = 0.2
_T = TypeVar("_T")


@dataclass
class _Task:
    work: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)


def _ignore() -> None:
    """For a daemon that nobody is interested in any more."""


class Registrar:
    """Registers by symlinks in `iovs`. `on_death` is called, once, when the daemon is found dead.

    Raises StorageUnavailable if the directory cannot be opened by the deadline.
    """

    def __init__(self, iovs: str, on_death: Callable[[], None], deadline: Deadline) -> None:
        self._iovs = iovs
        self._on_death = on_death
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._links: list[str] = []
        self._fd = -1
        self._last_probe_s = 0.0
        self._asked = False
        self.semaphore = ""
        self.dead = False
        self._thread = threading.Thread(target=self._work, name="usrbio-registrar", daemon=True)
        self._thread.start()
        try:
            self.run(self._open, deadline)
        except BaseException:
            self._tasks.put(None)
            raise

    def run(self, work: Callable[[], _T], deadline: Deadline) -> _T:
        """Do this on the thread. Raises StorageUnavailable for an OSError and at the deadline."""
        task = _Task(work)
        self._tasks.put(task)
        try:
            result: _T = task.future.result(deadline.remaining_ms() / 1000)
        except FutureTimeoutError:
            task.future.cancel()
            raise StorageUnavailable("the 3FS daemon does not answer; is it hung?") from None
        except OSError as error:
            raise StorageUnavailable(
                f"the 3FS daemon takes no registration: {error}; it must see the /dev/shm of this "
                "process (containers: --ipc=host)"
            ) from None
        return result

    def link(self, memory: SharedMemory, key: str) -> None:
        """Register. Only inside `run`."""
        with memory.named():
            os.symlink(memory.path, key, dir_fd=self._fd)
        self._links.append(key)

    def submit(self, work: Callable[[], None]) -> None:
        """Do this on the thread, later."""
        self._tasks.put(_Task(work))

    def suspect(self) -> None:
        """Ask soon whether the daemon is alive; waits for nothing."""
        if not self._asked:  # while the daemon hangs, questions would pile up
            self._asked = True
            self.submit(self._probe)

    def close(self, timeout_s: float) -> None:
        """Deregister everything and end the thread; a hung daemon is not waited for any longer."""
        self._on_death = _ignore
        self._tasks.put(None)
        self._thread.join(timeout_s)

    def abandon(self) -> None:
        """In a forked child: close the descriptor, so that the parent's end is noticed."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            with contextlib.suppress(OSError):  # of a dead mount
                os.close(fd)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            if not task.future.set_running_or_notify_cancel():
                continue
            try:
                task.future.set_result(task.work())
            except BaseException as error:
                task.future.set_exception(error)
        for key in self._links:
            with contextlib.suppress(OSError):
                os.unlink(key, dir_fd=self._fd)
        self.abandon()

    def _open(self) -> None:
        self._fd = os.open(self._iovs, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        path = semaphore_path(self._submit_link())
        if path is None or not Path(path).exists():
            raise StorageUnavailable(
                f"the 3FS daemon's semaphore {path or 'is of an unknown kind'} is not here: daemon "
                "and client must see the same /dev/shm (containers: --ipc=host)"
            )
        self.semaphore = path

    def _submit_link(self) -> str:
        return os.readlink(SUBMIT_LINK, dir_fd=self._fd)

    def _probe(self) -> None:
        self._asked = False
        if self.dead or time.monotonic() - self._last_probe_s < _PROBE_INTERVAL_S:
            return
        try:
            self.dead = self._submit_link() != self.semaphore
        except OSError:
            self.dead = True
        self._last_probe_s = time.monotonic()
        if self.dead:
            self._on_death()
