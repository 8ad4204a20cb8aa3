"""A 3FS client daemon to test against, in a process of its own: a FUSE mount and USRBIO rings.

with ThreeFs(backing, mount) as fs:
    fs.set(jitter_ms=5, fail_share=0.01, fail_errno=errno.EREMOTEIO)
    ...
    fs.kill()      # kill -9: open, symlink and ioctl give ENOTCONN, waits end with nothing
    fs.restart()   # on the same mount point, with new semaphores; nothing is registered

Two of them over one backing directory are two hosts that see the same inodes. Never report its
speed as that of 3FS.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import pytest

from tests.conftest import need_program
from tests.processes import freeze

MNT_DETACH: Final = 2
_SOURCES = Path(__file__).with_name("daemon")
_FLAGS = ("-std=gnu11", "-O2", "-g", "-pthread", "-Wall", "-Wextra", "-Werror")


class DaemonError(RuntimeError):
    """The daemon ended by itself, or would not start; its own words say why."""


@functools.cache
def program() -> Path:
    """The daemon, compiled once a session."""
    directory = Path(tempfile.mkdtemp(prefix="threefs-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    built = directory / "threefsd"
    sources = sorted(_SOURCES.glob("*.c"))
    subprocess.run([need_program("gcc"), *_FLAGS, "-o", built, *sources], check=True)
    return built


def need_mounts() -> None:
    """No right to mount is a skip at home and a failure in CI."""
    if os.geteuid() != 0:
        _cannot("mounting a FUSE file system needs root (or `unshare -Urm`)")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        _cannot("/dev/fuse is missing or not accessible")


def _cannot(why: str) -> None:
    if os.environ.get("CI"):
        pytest.fail(why)
    pytest.skip(why)


class ThreeFs:
    """One daemon over `backing`, mounted on `mount` while the context lasts.

    `chunk_bytes` is the st_blksize of all files. The kernel caches attributes, names and absence
    for `attr_ms`, `entry_ms` and `absent_ms` (30 s, 30 s and 5 s in 3FS).
    """

    def __init__(
        self,
        backing: Path,
        mount: Path,
        *,
        chunk_bytes: int = 64 << 10,
        attr_ms: int = 50,
        entry_ms: int = 50,
        absent_ms: int = 50,
        workers: int = 4,
        cluster: str = "stand-in",
    ) -> None:
        self.backing, self.mount = backing, mount
        self._options = {
            "backing": backing,
            "mount": mount,
            "chunk-bytes": chunk_bytes,
            "attr-ms": attr_ms,
            "entry-ms": entry_ms,
            "absent-ms": absent_ms,
            "workers": workers,
            "cluster": cluster,
        }
        self._own = Path(tempfile.mkdtemp(prefix="threefs-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._semaphores: list[Path] = []

    def __enter__(self) -> ThreeFs:
        try:
            self.start()
        except BaseException:
            self._clean()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.stop()
        finally:
            self._clean()

    @property
    def iovs(self) -> Path:
        """Where memory and rings are registered."""
        return self.mount / "3fs-virt" / "iovs"

    @property
    def pid(self) -> int:
        if self._process is None:
            raise DaemonError("the daemon does not run")
        return self._process.pid

    def start(self) -> None:
        """Mount, and return once the kernel is answered."""
        need_mounts()
        for directory in (self.backing, self.mount):
            directory.mkdir(parents=True, exist_ok=True)
        options = {**self._options, "control": self._control}
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [program(), *(f"--{name}={value}" for name, value in options.items())],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != b"ready\n":
            why = self._end()
            if "not permitted" in why:
                _cannot(why)
            raise DaemonError(why)
        self._semaphores += map(Path, self._ask("semaphores"))

    def kill(self) -> None:
        """kill -9. The mount stays, dead."""
        if self._process is not None:
            self._process.kill()
            self._end()

    def pause(self) -> None:
        """It does nothing until `resume`: rings stand still, and every call on the mount hangs."""
        freeze(self.pid)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def restart(self) -> None:
        """kill -9 if it still runs, then a new daemon on the same mount point."""
        self.kill()
        unmount(self.mount)
        self.start()

    def await_end(self, timeout_s: float = 10) -> None:
        """Return once it has ended by itself, as by a client's mistake that breaks 3FS too."""
        if self._process is not None:
            self._process.wait(timeout_s)

    def stop(self) -> None:
        """Unmount and end. A daemon that ended by itself before is an error."""
        if self._process is None:
            return
        assert self._process.stdin is not None
        self.resume()
        self._process.stdin.close()
        process = self._process
        why = self._end()
        if process.returncode != 0:
            raise DaemonError(why)

    def set(self, **faults: float) -> None:
        """Switch faults, by the names and meanings in control.c and daemon.h."""
        for name, value in faults.items():
            answer = self._ask(f"set {name} {float(value)!r}")
            if "error" in answer:
                raise ValueError(f"{name}: {answer['error']}")

    def reset(self) -> None:
        """All faults off; what hung goes on."""
        self._ask("reset")

    def faults(self) -> dict[str, float]:
        answer: dict[str, float] = self._ask("get")
        return answer

    def counters(self) -> dict[str, Any]:
        """What this daemon has served: I/Os and bytes by ring and by FUSE, jobs, their sizes
        (`batches`, size to number), calls by name, I/Os `held` right now."""
        answer: dict[str, Any] = self._ask("counters")
        return answer

    def wait_until(self, holds: Callable[[dict[str, Any]], bool], timeout_s: float = 10) -> None:
        """Return once it holds of the counters: what the kernel tells the daemon comes late."""
        end = time.monotonic() + timeout_s
        while not holds(self.counters()):
            if time.monotonic() > end:
                raise TimeoutError(json.dumps(self.counters()))
            time.sleep(0.002)

    @property
    def _control(self) -> Path:
        return self._own / "control"

    @property
    def _log(self) -> Path:
        return self._own / "log"

    def _ask(self, command: str) -> Any:
        with socket.socket(socket.AF_UNIX) as control:
            control.settimeout(10)
            try:
                control.connect(str(self._control))
                control.sendall(command.encode() + b"\n")
                with control.makefile("rb") as answers:
                    return json.loads(answers.readline())
            except OSError as error:
                raise DaemonError(self._log.read_text() or str(error)) from error

    def _end(self) -> str:
        """Wait for the process, which is about to end; what it said."""
        process, self._process = self._process, None
        assert process is not None
        try:
            process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None and not stream.closed:
                stream.close()
        return f"exit status {process.returncode}: {self._log.read_text().strip()}"

    def _clean(self) -> None:
        if self._process is not None:
            self.kill()
        unmount(self.mount)
        for semaphore in self._semaphores:
            semaphore.unlink(missing_ok=True)
        shutil.rmtree(self._own, ignore_errors=True)


def unmount(mount: Path) -> None:
    """Lazily, also where the daemon is dead and whatever is open."""
    libc = ctypes.CDLL(None, use_errno=True)
    while is_mounted(mount):
        if libc.umount2(os.fsencode(mount), MNT_DETACH):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(mount))


def is_mounted(mount: Path) -> bool:
    """Of a dead mount too, on which a stat fails."""
    sought = str(mount.parent.resolve() / mount.name).replace(" ", "\\040")
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    return any(line.split()[4] == sought for line in lines)
