"""A process with a store, driven over its standard streams: a command a line, an answer a line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.segment.segment import stored_bytes
from hicache_backends.segment.store import SegmentStore
from hicache_backends.testing.canaries import (
    NAMESPACE,
    PAGE_BYTES,
    Target,
    canary,
    chain_parents,
    digests_of,
    get,
    put,
    soon,
)

_REPOSITORY = Path(__file__).parents[3]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": os.pathsep.join([str(_REPOSITORY), str(_REPOSITORY / "backends")]),
}


def options(*roots: Path, pages: int = 256, segment_pages: int = 8, **more: Any) -> NvmeOptions:
    """Room for `pages` pages a root, in segments of `segment_pages`."""
    fixed = {
        "capacity_bytes": stored_bytes(pages, PAGE_BYTES),
        "segment_bytes": stored_bytes(segment_pages, PAGE_BYTES),
        "free_floor_bytes": 0,
    }
    return NvmeOptions(tuple(map(str, roots)), **{**fixed, **more})


class Worker:
    """A process that has a store open on `root`. `module`: what it runs."""

    module = __name__

    def __init__(self, root: Path, *, wait: bool = True, **more: Any) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", self.module, json.dumps([str(root), more])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        if wait:
            self.ready()

    def ready(self) -> Any:
        """Wait until the store is open; its uuid."""
        return self.answer()

    def tell(self, *command: Any) -> None:
        """Send a command."""
        assert self.process.stdin
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """What it answers to the next command."""
        assert self.process.stdout
        line = self.process.stdout.readline()
        assert line, f"the process ended with {self.process.wait(10)}"
        return json.loads(line)

    def ask(self, *command: Any) -> Any:
        self.tell(*command)
        return self.answer()

    def kill(self) -> None:
        """kill -9."""
        self.process.kill()
        self.end()

    def close(self) -> None:
        """Close the store and end."""
        assert self.ask("close") is True
        self.end()

    def end(self) -> None:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.close()
        self.process.wait(20)
        self.process.stdout.close()


def serve(storage: SegmentStore) -> None:
    """Say which store it is, and answer until the commands end."""
    _say(storage.stores[0][0].hex())
    for line in sys.stdin:
        _say(_answer(storage, *json.loads(line)))


def _answer(storage: SegmentStore, name: str, *arguments: Any) -> Any:
    names = arguments[0] if arguments else []
    pages = digests_of(*names)
    if name == "put":
        outcomes = put(storage, pages, parents=chain_parents(pages))
        return [o.location.hex() if o.ok else "" for o in outcomes]
    if name == "get":
        return get(storage, pages)
    if name == "read":
        target = Target(len(pages))
        places = [bytes.fromhex(place) for place in arguments[1]]
        outcomes = storage.get(pages, target.pages, soon(), places)
        for i, outcome in enumerate(outcomes):
            assert not outcome.ok or target[i] == canary(pages[i])
        return [outcome.reason.value if outcome.reason else "" for outcome in outcomes]
    if name == "contains":
        return storage.contains(pages)
    if name == "remove":
        return [bool(outcome) for outcome in storage.remove(pages)]
    if name == "close":
        return storage.close()
    assert name == "stats"
    return storage.stats()


def _main() -> None:
    root, more = json.loads(sys.argv[1])
    serve(open_nvme(NAMESPACE, options(Path(root), **more), shared=True))


def _say(answer: object) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    _main()
