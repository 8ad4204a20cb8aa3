"""Lock files whose locks belong to this process alone, not to children that fork off it.

A flock belongs to an open file, which a forked child shares: it would outlive its process in
the child. Here every child closes its copies before its own code runs.
"""

from __future__ import annotations

import fcntl
import os
import threading
from pathlib import Path

_open: set[LockFile] = set()
_guard = threading.Lock()
_hooked = threading.Event()


class LockFile:
    """An open file that can be locked. The lock goes with `close` or with the process."""

    def __init__(self, path: Path) -> None:
        """Raises OSError."""
        with _guard:
            _hook()
            self._path = path
            self.fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            _open.add(self)

    def try_shared(self) -> bool:
        """False if another process holds it exclusively. Raises OSError."""
        return self._try(fcntl.LOCK_SH)

    def try_exclusive(self) -> bool:
        """False if another process holds it. Raises OSError."""
        return self._try(fcntl.LOCK_EX)

    @property
    def in_place(self) -> bool:
        """Whether who opens the path now gets this file."""
        try:
            return os.path.samestat(os.fstat(self.fd), self._path.stat())
        except OSError:
            return False

    @property
    def closed(self) -> bool:
        """Also true in a child of the process that opened it."""
        return self.fd < 0

    def close(self) -> None:
        """Give the lock up. Closing again is fine."""
        with _guard:
            if not self.closed:
                _open.discard(self)
                os.close(self.fd)
                self.fd = -1

    def _try(self, kind: int) -> bool:
        try:
            fcntl.flock(self.fd, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def _hook() -> None:
    if not _hooked.is_set():
        _hooked.set()
        os.register_at_fork(
            before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_forget
        )


def _forget() -> None:
    """In the child: closing gives up no lock of the parent's, unlocking would."""
    for file in _open:
        os.close(file.fd)
        file.fd = -1
    _open.clear()
    _guard.release()
