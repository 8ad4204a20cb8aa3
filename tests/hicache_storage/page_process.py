"""A process with a page store over a registry, told what to do line by line, to be killed.

with PageProcess(root, url) as process:
    process.write("a", 20)
    assert process.read("a", 20) == 20
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from hicache_backends.identity import Namespace
from hicache_backends.nvme import NvmeOptions
from hicache_storage.page_store import PageStore
from hicache_storage.tools.tool_store import open_tool_store
from kvmanager.options import RegistryOptions
from tests.backends.nvme_medium import slot_bytes

PAGE = 4096
SEGMENT_PAGES = 8
REGISTRY = RegistryOptions(
    timeout_ms=1000, connect_timeout_ms=1000, heartbeat_ms=100, ttl_ms=600, touch_interval_ms=1
)
_SLOT = slot_bytes(PAGE) + 64
_REPOSITORY = Path(__file__).parents[2]


def namespace(model: str = "m") -> Namespace:
    return Namespace(model, "r", "bf16", "page_first", 64, PAGE, tenant="t")


def hashes(chain: str, n: int) -> list[str]:
    return [hashlib.sha256(f"{chain}{i}".encode()).hexdigest() for i in range(n)]


def content(key: str) -> bytes:
    return hashlib.shake_128(key.encode()).digest(PAGE)


def open_pages(root: Path, url: str, model: str = "m", capacity: int = 1024) -> PageStore:
    options = NvmeOptions(
        (str(root),),
        capacity_bytes=capacity * _SLOT,
        segment_bytes=SEGMENT_PAGES * _SLOT,
        free_floor_bytes=0,
    )
    store, _ = open_tool_store(namespace(model), options, endpoint=url, registry_options=REGISTRY)
    return store


def write(store: PageStore, chain: str, n: int) -> int:
    keys = hashes(chain, n)
    return sum(o.ok for o in store.set(keys, [content(key) for key in keys], parent=None))


def read(store: PageStore, chain: str, n: int) -> list[int]:
    """Which pages of a chain are hits; every hit has its own bytes."""
    keys = hashes(chain, n)
    buffers = [bytearray(PAGE) for _ in keys]
    outcomes = store.get(keys, buffers)
    hits = [i for i, outcome in enumerate(outcomes) if outcome.ok]
    assert all(bytes(buffers[i]) == content(keys[i]) for i in hits), "wrong bytes were served"
    return hits


class PageProcess:
    """`store`: the name of its store."""

    def __init__(self, root: Path, url: str, model: str = "m", capacity: int = 1024) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, str(root), url, model, str(capacity)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{_REPOSITORY}:{_REPOSITORY}/backends"},
        )
        self.store: str = self._answer()

    def write(self, chain: str, n: int) -> int:
        """How many pages are stored."""
        stored: int = self._ask("write", chain, n)
        return stored

    def read(self, chain: str, n: int) -> list[int]:
        """Which pages are hits, with the right bytes."""
        hits: list[int] = self._ask("read", chain, n)
        return hits

    def churn(self, seconds: float) -> int:
        """Go on storing more than there is room for; how many pages were."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(["churn", seconds]) + "\n")
        self._process.stdin.flush()
        return 0

    def state(self) -> str:
        """Of its registry session."""
        said: str = self._ask("state")
        return said

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Have it close its store."""
        self._process.communicate(timeout=30)

    def answer(self) -> Any:
        """What it says next."""
        return self._answer()

    def _ask(self, *command: object) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the process failed"
        return json.loads(line)

    def __enter__(self) -> PageProcess:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()


def _obey(store: PageStore, command: Sequence[Any]) -> object:
    if command[0] == "write":
        return write(store, command[1], command[2])
    if command[0] == "read":
        return read(store, command[1], command[2])
    if command[0] == "churn":
        return _churn(store, command[1])
    assert store.registry is not None
    return store.registry.state.value


def _churn(store: PageStore, seconds: float) -> int:
    import time

    stored, chain, until_s = 0, 0, time.monotonic() + seconds
    while time.monotonic() < until_s:
        stored += write(store, f"churn {chain} {os.getpid()} ", 12)
        read(store, f"churn {max(0, chain - 3)} {os.getpid()} ", 12)
        chain += 1
    return stored


def main(root: str, url: str, model: str, capacity: str) -> None:
    store = open_pages(Path(root), url, model, int(capacity))
    print(json.dumps(store.storage.stores[0][0].hex()), flush=True)  # noqa: T201 - the answer
    for line in sys.stdin:
        print(json.dumps(_obey(store, json.loads(line))), flush=True)  # noqa: T201 - the answer
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
