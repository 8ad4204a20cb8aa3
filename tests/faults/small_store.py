"""A segment store of sixteen pages in a child process under faults, and what must hold there.

A line a step goes to stdout, so that the test knows how far the process came; an unkept promise
ends it with its traceback.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from hicache_backends.nvme import NvmeOptions, open_nvme
from hicache_backends.storage import ROOT, PageStorage
from hicache_backends.testing.canaries import (
    NAMESPACE,
    PAGE_BYTES,
    chain_parents,
    digests_of,
    get,
    put,
)

CAPACITY = 16
CHAINS = [digests_of(*(f"{c}/{i}" for i in range(8))) for c in range(3)]


def open_small(root: Path, engine: str, **options: str) -> PageStorage:
    """A store of two segments of eight pages."""
    slot = PAGE_BYTES + 64
    return open_nvme(
        NAMESPACE,
        NvmeOptions(
            (str(root),),
            capacity_bytes=CAPACITY * slot,
            free_floor_bytes=0,
            segment_bytes=8 * slot,
            io_engine=engine,
            **options,  # type: ignore[arg-type]  # all of these are strings
        ),
    )


def say(*words: object) -> None:
    """A line to the test that started this process."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def play(scenarios: Mapping[str, object]) -> None:
    """Run the scenario that the command line names: `scenario root engine`."""
    name, root, engine = sys.argv[1:4]
    scenario = scenarios[name]
    assert callable(scenario)
    scenario(Path(root), engine)
    say("end")


def check_whole(storage: PageStorage, *, capacity: int = CAPACITY) -> None:
    """Nothing wrong is served, the figures agree, and no slot is lost."""
    pages = [page for chain in CHAINS for page in chain]
    for _ in range(2):  # what is found bad is gone the second time
        there = get(storage, pages)
        assert storage.contains(pages) == there
    assert storage.stats()["pages"] == sum(there)
    assert [*storage.entries()] != [] or not any(there)
    for chain in CHAINS:
        for page, parent in zip(chain, chain_parents(chain), strict=True):
            assert put(storage, [page], parents=[parent])[0].ok
            assert get(storage, [page]) == [True]
    storage.remove(pages)
    assert storage.stats()["pages"] == 0
    fresh = digests_of(*(f"fresh {i}" for i in range(capacity)))
    assert all(put(storage, fresh, parents=[ROOT] * capacity))
    assert get(storage, fresh) == [True] * capacity, "slots were lost"
    storage.remove(fresh)
