"""The process around a command: how it ends by a signal, and with standard streams that fail."""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import NoReturn

from hicache_storage.cli.app import run


def main() -> NoReturn:
    """Run the command line and exit with its status; 143 after SIGTERM."""
    has_output = sys.stdout is not None
    _open_standard_streams()
    if not has_output:
        sys.exit("error: standard output is closed")
    signal.signal(signal.SIGTERM, _terminate)
    sys.exit(_flushed(run()))


def _terminate(number: int, _frame: FrameType | None) -> NoReturn:
    """End as if by an exception, so that what is temporary is removed and children are ended."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a second one must not stop the cleaning
    sys.exit(128 + number)


def _open_standard_streams() -> None:
    """Put /dev/null where the caller closed one: no other file must get its number."""
    for fd, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        if getattr(sys, name) is None:
            null = os.open(os.devnull, os.O_RDWR)
            if null != fd:
                os.dup2(null, fd)
                os.close(null)
            setattr(sys, name, open(fd, mode, closefd=False))  # noqa: SIM115 - open for good


def _flushed(status: int) -> int:
    """`status`, or 1 where what was printed cannot be written; the interpreter's own flush at
    its end must then have nothing to say."""
    try:
        sys.stdout.flush()
    except OSError:
        status = status or 1
        null = os.open(os.devnull, os.O_WRONLY)
        with suppress(OSError):
            os.dup2(null, sys.stdout.fileno())
        os.close(null)
    return status
