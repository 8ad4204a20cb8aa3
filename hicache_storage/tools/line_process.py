"""A child process that is spoken to in lines."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import IO

from hicache_backends.errors import StorageError

_EXIT_SECONDS = 30


class LineProcess:
    """A running command, called `name` in errors. It ends when its input does: with this object's
    context, or with this process, however that ends. An error in the context kills it."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str]) -> None:
        self._name = name
        self._child = subprocess.Popen(  # noqa: S603 - no shell, our own arguments
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
            start_new_session=True,  # an interrupt from the terminal is for the parent alone
        )
        assert self._child.stdin is not None  # noqa: S101 - both are pipes
        assert self._child.stdout is not None  # noqa: S101
        self._commands: IO[str] = self._child.stdin
        self._answers: IO[str] = self._child.stdout

    @classmethod
    def of_module(cls, name: str, module: str, *arguments: str) -> LineProcess:
        """`python -m module`, by this interpreter and with its import path."""
        path = os.pathsep.join(filter(None, sys.path))
        command = [sys.executable, "-m", module, *arguments]
        return cls(name, command, {**os.environ, "PYTHONPATH": path})

    def __enter__(self) -> LineProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            self.kill()
        with suppress(BrokenPipeError):
            self._commands.close()
        try:
            self._child.wait(timeout=_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()
        self._answers.close()

    def kill(self) -> None:
        """End the process at once; whoever waits for its answer gets a StorageError."""
        self._child.kill()

    def ask(self, line: str) -> str:
        """One line there, one line back."""
        self.send(line)
        return self.answer()

    def send(self, line: str) -> None:
        """One line there. Raises StorageError if the process ended."""
        try:
            self._commands.write(line + "\n")
            self._commands.flush()
        except BrokenPipeError:
            raise self._ended() from None

    def answer(self) -> str:
        """The next line that the process writes. Raises StorageError if it ended instead."""
        line = self._answers.readline()
        if not line:
            raise self._ended()
        return line.rstrip("\n")

    def _ended(self) -> StorageError:
        return StorageError(f"{self._name} ended with status {self._child.wait()}")


def reply(line: str) -> None:
    """What the child answers: one line on its standard output."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
