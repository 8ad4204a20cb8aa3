"""A process that stores pages and goes on holding its store, to be killed.

with StoreWriter("3fs", root, pages=10) as writer:
    writer.kill()
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import TracebackType

from hicache_backends.deadline import Deadline
from hicache_backends.identity import Namespace
from hicache_backends.pages import Pages
from hicache_backends.storage import ROOT, PageStorage
from hicache_backends.table import open_storage

PAGE_BYTES = 65536
_REPOSITORY = Path(__file__).parents[2]


def namespace(model: str = "m") -> Namespace:
    return Namespace(model, "r", "bf16", "page_first", 64, PAGE_BYTES, tenant="t")


def open_store(backend: str, root: Path, model: str = "m", capacity: str = "16MiB") -> PageStorage:
    """A store with small segments."""
    options: dict[str, object] = {
        "capacity": capacity,
        "free_floor": 0,
        "segment_bytes": "1MiB",
    }
    if backend == "3fs":
        options |= {"mount_point": str(root), "staging_bytes": "8MiB", "rings": 2}
    else:
        options["paths"] = [str(root)]
    return open_storage(backend, namespace(model), options)


def put(storage: PageStorage, pages: int, first: int = 0) -> None:
    """Store a chain of pages."""
    digests = [f"{n:016d}".encode() for n in range(first, first + pages)]
    buffers = Pages.from_buffers(
        [bytes([n % 256]) * PAGE_BYTES for n in range(pages)], writable=False
    )
    outcomes = storage.put(digests, buffers, [ROOT, *digests[:-1]], Deadline.after_ms(20000))
    assert all(outcomes), outcomes


class StoreWriter:
    """The process. `store`: the name of its store. `busy`: it goes on storing, so many pages a
    round, and evicts what it has no room for."""

    def __init__(
        self, backend: str, root: Path, pages: int, model: str = "m", *, busy: bool = False
    ) -> None:
        kind = "busy" if busy else "idle"
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, backend, str(root), str(pages), model, kind],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": f"{_REPOSITORY}:{_REPOSITORY}/backends"},
        )
        assert self._process.stdout is not None
        self.store = self._process.stdout.readline().strip()
        assert self.store, "the writer failed"

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_rounds(self, count: int) -> None:
        """Return in the middle of the round after so many."""
        assert self._process.stdout is not None
        for _ in range(count):
            assert self._process.stdout.readline()

    def kill(self) -> None:
        """kill -9."""
        self._process.kill()
        self._process.communicate()

    def close(self) -> None:
        """Have it close its store."""
        self._process.communicate("\n", timeout=30)

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._process.poll() is None:
            self.kill()


def main(backend: str, root: str, pages: str, model: str, kind: str) -> None:
    storage = open_store(backend, Path(root), model)
    put(storage, int(pages))
    print(storage.stores[0][0].hex(), flush=True)  # noqa: T201 - the answer
    first = 0
    while kind == "busy":
        first += int(pages)
        put(storage, int(pages), first)
        print(first, flush=True)  # noqa: T201 - the answer
    sys.stdin.readline()
    storage.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
