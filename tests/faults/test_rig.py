"""The fault rig does what it says: a fault that does not happen proves nothing."""

from __future__ import annotations

import errno
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.faults.probe import CALLS
from tests.faults.rig import (
    ALLOCATE,
    ANY,
    BLOCK,
    DELAY,
    FAIL,
    KILL,
    KILL_TORN,
    NAME,
    OPEN,
    READ,
    SHORT,
    WRITE,
    Faults,
)

KINDS = {
    "open": OPEN,
    "relative": OPEN,
    "read": READ,
    "pread": READ,
    "preadv": READ,
    "write": WRITE,
    "pwrite": WRITE,
    "pwritev": WRITE,
    "allocate": ALLOCATE,
    "truncate": ALLOCATE,
    "rename": NAME,
    "unlink": NAME,
    "mkdir": NAME,
}
MOVES = sorted(call for call, kind in KINDS.items() if kind in (READ, WRITE))


@pytest.fixture
def root(faults: Faults) -> Path:
    (faults.directory / "file").write_bytes(bytes(8))
    return faults.directory


def answer(faults: Faults, call: str, root: Path) -> list[str]:
    run = faults.run("tests.faults.probe", call, root)
    assert run.returncode == 0, run.stderr
    return run.stdout.splitlines()


def test_every_call_is_probed() -> None:
    assert KINDS.keys() == CALLS.keys()


@pytest.mark.parametrize("call", sorted(KINDS))
def test_every_call_can_fail(faults: Faults, root: Path, call: str) -> None:
    faults.on(KINDS[call], FAIL, errno.EMFILE)
    assert answer(faults, call, root)[0] == f"errno {errno.EMFILE}"
    assert faults.acted() == 1


@pytest.mark.parametrize("call", MOVES)
def test_every_move_can_be_short(faults: Faults, root: Path, call: str) -> None:
    faults.on(KINDS[call], SHORT, 3)
    moved = answer(faults, call, root)[0]
    assert moved == "3" or moved == str(bytes(3))


def test_only_calls_in_the_window_on_the_named_files_below_the_directory(
    faults: Faults, root: Path, tmp_path: Path
) -> None:
    faults.on(READ, FAIL, errno.EIO, first=2)
    assert "errno" not in answer(faults, "pread", root)[0]
    faults.on(READ, FAIL, errno.EIO, name="other")
    assert "errno" not in answer(faults, "pread", root)[0]
    assert faults.seen() == 0
    elsewhere = tmp_path / "root-not"
    elsewhere.mkdir()
    faults.on(ANY, FAIL, errno.EIO)
    assert "errno" not in answer(faults, "pwrite", elsewhere)[0]


def test_a_delay_delays(faults: Faults, root: Path) -> None:
    faults.on(READ, DELAY, 300)
    began = time.monotonic()
    answer(faults, "pread", root)
    assert time.monotonic() - began >= 0.3
    assert faults.acted() == 1


@pytest.mark.parametrize(("torn", "left"), [(False, b"\1" * 8), (True, bytes(4) + b"\1" * 4)])
def test_a_kill_is_immediate(faults: Faults, root: Path, torn: bool, left: bytes) -> None:
    (root / "file").write_bytes(b"\1" * 8)
    faults.on(WRITE, KILL_TORN if torn else KILL)
    run = faults.run("tests.faults.probe", "pwrite", root)
    assert run.returncode == -signal.SIGKILL
    assert (root / "file").read_bytes() == left


def test_a_blocked_call_waits_for_its_release(faults: Faults, root: Path) -> None:
    faults.on(READ, BLOCK)
    child = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.probe", "pread", root],
        env=faults.environment(),
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        text=True,
    )
    faults.await_blocked()
    assert child.poll() is None
    faults.clear()
    out, _ = child.communicate(timeout=20)
    assert out.splitlines()[0] == str(bytes(8))
