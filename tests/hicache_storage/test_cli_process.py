"""How a command ends from outside: by signals, and with an output that cannot be written."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def start(*arguments: str, tmpdir: Path, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hicache_storage", *arguments],
        env={
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/backends",
            "PATH": os.environ["PATH"],
            "TMPDIR": str(tmpdir),
        },
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=_heed_interrupts,
    )


def _heed_interrupts() -> None:
    """A shell lets what it runs in the background ignore them."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_until(condition: Callable[[], bool]) -> None:
    until = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < until
        time.sleep(0.02)


@pytest.fixture
def temporary() -> Iterator[Path]:
    """With a path so short that the registry's socket fits beside the pages."""
    with tempfile.TemporaryDirectory(prefix="hc-") as directory:
        yield Path(directory)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_to_the_parent_alone_ends_all_at_once_and_leaves_nothing(
    number: signal.Signals, status: int, tmp_path: Path, temporary: Path
) -> None:
    trace = tmp_path / "endless.jsonl"
    line = json.dumps({"timestamp": 0, "hash_ids": list(range(200))}) + "\n"
    trace.write_text(line * 5000)
    process = start("replay", str(trace), "--nodes", "2", "--concurrent", tmpdir=temporary)
    wait_until(lambda: any(temporary.glob("*/*/*/*.data")))
    assert process.poll() is None, "it is to be interrupted at work"
    process.send_signal(number)
    _, errors = process.communicate(timeout=10)  # returns when no child holds the pipe either
    assert process.returncode == status
    assert "Traceback" not in errors
    assert not any(temporary.iterdir())


@pytest.mark.parametrize("command", ["show", "table", "schema"])
def test_an_output_that_is_full_is_an_error_without_a_traceback(
    command: str, tmp_path: Path
) -> None:
    with Path("/dev/full").open("w") as full:
        process = start("config", command, tmpdir=tmp_path, stdout=full.fileno())
        _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors == "error: No space left on device\n"


@pytest.mark.parametrize("command", ["show", "table", "schema"])
def test_a_reader_that_went_away_ends_a_command_silently(command: str, tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = start("config", command, tmpdir=tmp_path, stdout=writing)
    os.close(writing)
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert errors == ""


def test_a_closed_output_is_an_error_without_a_traceback(tmp_path: Path) -> None:
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$0" -m hicache_storage config show >&-', sys.executable],
        env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/backends", "PATH": os.environ["PATH"]},
        stderr=subprocess.PIPE,
        text=True,
        timeout=30,
    )
    assert done.returncode == 1
    assert done.stderr == "error: standard output is closed\n"
