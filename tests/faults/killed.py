"""A process that is killed at any call that changes or opens a file."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path

from hicache_backends.testing.canaries import NAMESPACE, chain_parents, get, put
from tests.backends.nvme_medium import stored_pages
from tests.faults.rig import CHANGES, KILL, KILL_TORN, OPEN, Faults
from tests.faults.small_store import CHAINS, check_whole, open_small, play, say


def fill(root: Path, engine: str) -> None:
    """Put three chains, of which two fit, saying which have come back."""
    storage = open_small(root, engine)
    say("open")
    for number, chain in enumerate(CHAINS):
        say("begin", number)
        outcomes = put(storage, chain, parents=chain_parents(chain))
        assert all(outcomes), outcomes
        say("done", number)
    storage.close()
    say("closed")


def check_after_kill(root: Path, engine: str, steps: list[str]) -> None:
    """What had come back before the kill is there, but for what later pages may push out."""
    storage = open_small(root, engine)
    for number, chain in enumerate(CHAINS):
        there = get(storage, chain)
        assert storage.contains(chain) == there
        if f"done {number}" in steps and (number or "begin 2" not in steps):
            assert all(there), f"committed pages are lost after {steps}"
    raw = [page.digest for page in stored_pages(root, NAMESPACE)]
    assert len(raw) == len({*raw}), "a page has two valid records"
    check_whole(storage)
    assert storage.close()


def in_child(work: Callable[[], object]) -> tuple[list[str], int]:
    """The lines that `work` says in a forked process, and how that ended."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.dup2(writer, 1)
            work()
            os._exit(0)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        lines = pipe.read().splitlines()
    return lines, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def kill_each(root: Path, engine: str, action: int = KILL) -> None:
    """Die at the first call that changes or opens anything, at the second, ..., and each time
    look at what is left in yet another process."""
    faults = Faults.here()
    for nth in range(1, 1000):
        here = root / str(nth)
        here.mkdir()
        faults.on(CHANGES | OPEN, action, first=nth, last=nth)
        steps, ended = in_child(lambda here=here: fill(here, engine))  # type: ignore[misc]  # mypy infers no types for lambda defaults
        if not ended:
            say("kills", nth - 1)
            return
        assert ended == -signal.SIGKILL
        faults.clear()
        _, ended = in_child(
            lambda here=here, steps=steps: check_after_kill(here, engine, steps)  # type: ignore[misc]  # as above
        )
        assert ended == 0, f"killed at call {nth}, after {steps}"
    raise AssertionError("no end of calls")


def kill_each_torn(root: Path, engine: str) -> None:
    kill_each(root, engine, KILL_TORN)


if __name__ == "__main__":
    play(globals())
