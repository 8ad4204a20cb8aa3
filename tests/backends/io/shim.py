"""Faults in the I/O calls of a child process, by a small library that is loaded before libc.

A rule is `call:nth:action:value`: `call` one of pread, preadv, preadv2 (with flags: a try of the
page cache alone), pwrite, pwritev; `nth` counts that call in the child from 1, 0 is every one;
`action` fail (value: errno), delay (ms), short (bytes at most), kill (the process, after the
call). The log has a line a call: name, fd, offset, bytes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Child:
    """What a child process said and which I/O calls it made."""

    returncode: int
    output: str
    calls: list[tuple[str, int, int, int]]


def compile_shim(directory: Path) -> Path:
    """The library, built; skips the test where there is no compiler."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler for the fault library")
    library = directory / "shim.so"
    source = Path(__file__).with_name("shim.c")
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"]
    subprocess.run(command, check=True, capture_output=True)
    return library


def run_child(shim: Path, script: str, *args: str, rules: str = "", timeout_s: float = 60) -> Child:
    """Run a Python script under the rules; its sys.argv[1:] are `args`."""
    log = shim.with_suffix(".log")
    log.unlink(missing_ok=True)
    env = {
        **os.environ,
        "LD_PRELOAD": ":".join([*os.environ.get("LD_PRELOAD", "").split(), str(shim)]),
        "SHIM": rules,
        "SHIM_LOG": str(log),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
    }
    command = [sys.executable, "-c", script, *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout_s)
    assert done.returncode in (0, -9), done.stderr
    lines = log.read_text().split("\n")[:-1] if log.exists() else []
    calls = [(n, int(f), int(o), int(b)) for n, f, o, b in (line.split() for line in lines)]
    return Child(done.returncode, done.stdout, calls)
