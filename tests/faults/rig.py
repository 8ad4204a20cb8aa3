"""Faults on demand in a child process: `shim.c` preloaded, its rules set from here.

faults.fail(WRITE, errno.ENOSPC, first=3)      # every write from the third on
run = faults.run("tests.faults.failing", "no_space", root, "native")
"""

from __future__ import annotations

import ctypes
import mmap
import os
import subprocess
import sys
import time
from pathlib import Path

READ, WRITE, ALLOCATE, OPEN, NAME = 1, 2, 4, 8, 16
CHANGES = WRITE | ALLOCATE | NAME
ANY = READ | CHANGES | OPEN

_OFF, COUNT, DELAY, BLOCK, FAIL, SHORT, KILL, KILL_TORN = range(8)
"""What happens to a call. DELAY takes milliseconds, FAIL an errno, SHORT the bytes it lets move (0:
half); COUNT only counts, BLOCK holds the call until `clear`, KILL is kill -9 instead of the call,
KILL_TORN after half of its bytes."""

_RULES = 4
_NEVER = (1 << 63) - 1
_REPOSITORY = Path(__file__).parents[2]


class _Rule(ctypes.Structure):
    _fields_ = (
        ("action", ctypes.c_int32),
        ("kinds", ctypes.c_int32),
        ("first", ctypes.c_int64),
        ("last", ctypes.c_int64),
        ("value", ctypes.c_int64),
        ("name", ctypes.c_char * 64),
        ("seen", ctypes.c_int64),
        ("acted", ctypes.c_int64),
        ("waiting", ctypes.c_int64),
    )


class Faults:
    """The rules that act on the files below one directory.

    A rule acts on the calls `first` to `last` (counted from 1) of its kinds whose path below
    the directory contains `name`. Rules are numbered; setting one starts its count anew.
    """

    def __init__(self, library: Path, control: Path, directory: Path) -> None:
        self.shim, self.control, self.directory = library, control, directory
        size = _RULES * ctypes.sizeof(_Rule)
        if not control.exists():
            control.write_bytes(bytes(size))
        with control.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), size)
        self._rules = (_Rule * _RULES).from_buffer(self._shared)

    @classmethod
    def here(cls) -> Faults:
        """The rules of the process that this code runs in, itself started by `run`."""
        paths = (os.environ[f"FAULTS_{name}"] for name in ("LIBRARY", "CONTROL", "DIRECTORY"))
        return cls(*map(Path, paths))

    def on(
        self,
        kinds: int,
        action: int,
        value: int = 0,
        *,
        first: int = 1,
        last: int = _NEVER,
        name: str = "",
        rule: int = 0,
    ) -> None:
        """From now on do this to those calls."""
        one = self._rules[rule]
        one.action = _OFF
        one.kinds, one.value, one.name = kinds, value, name.encode()
        one.first, one.last = first, last
        one.seen = one.acted = one.waiting = 0
        one.action = action  # the last thing written: the shim looks here first

    def clear(self, rule: int | None = None) -> None:
        """Let everything pass; what was blocked goes on."""
        for one in self._rules if rule is None else [self._rules[rule]]:
            one.action = _OFF

    def seen(self, rule: int = 0) -> int:
        """Calls that the rule's kinds and name fit."""
        return int(self._rules[rule].seen)

    def acted(self, rule: int = 0) -> int:
        """Calls that the rule acted on."""
        return int(self._rules[rule].acted)

    def await_blocked(self, calls: int = 1, *, rule: int = 0, timeout_s: float = 20) -> None:
        """Return once so many calls are held."""
        end = time.monotonic() + timeout_s
        while self._rules[rule].waiting < calls:
            if time.monotonic() > end:
                raise TimeoutError(f"{self._rules[rule].waiting} of {calls} calls are held")
            time.sleep(0.002)

    def run(
        self, module: str, *arguments: object, timeout_s: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """`python -m module arguments...` under these faults."""
        return subprocess.run(
            [sys.executable, "-X", "faulthandler", "-m", module, *map(str, arguments)],
            cwd=_REPOSITORY,
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def environment(self) -> dict[str, str]:
        """What a child needs to be under these faults."""
        return {
            **os.environ,
            "LD_PRELOAD": str(self.shim),
            "FAULTS_LIBRARY": str(self.shim),
            "FAULTS_CONTROL": str(self.control),
            "FAULTS_DIRECTORY": str(self.directory),
            "PYTHONPATH": f"{_REPOSITORY}{os.pathsep}{_REPOSITORY / 'backends'}",
        }
