"""A process that stores pages which others store at the same moment, spoken to in lines.

"go": it stores all pages, from another one on than its neighbours; "count": what its slots hold.
"""

from __future__ import annotations

import json
import os
import sys

from hicache_backends.nvme import NvmeOptions, NvmeStorage
from hicache_storage.page_store import PageStore
from hicache_storage.tools.line_process import LineProcess, reply
from hicache_storage.tools.tool_store import open_tool_store
from kvmanager.options import RegistryOptions
from tests.backends.nvme_medium import slot_bytes
from tests.hicache_storage.test_shared_pages import NAMESPACE, PAGE, canaries, hashes

PAGES = 1000
BATCH = 32
SLOT = slot_bytes(PAGE) + 64
REGISTRY = RegistryOptions(timeout_ms=5000, claim_grace_ms=500)


def racing_writer(root: str, endpoint: str, place: int) -> LineProcess:
    """`place`: with which batch it begins."""
    return LineProcess.of_module("a writer", __name__, root, endpoint, str(place))


def race(store: PageStore, place: int) -> dict[str, int]:
    keys = hashes(PAGES)
    starts = list(range(0, PAGES, BATCH))
    stored = existed = 0
    for start in starts[place:] + starts[:place]:
        batch = keys[start : start + BATCH]
        above = keys[start - 1] if start else None
        outcomes = store.set(batch, canaries(batch), parent=above, timeout_ms=6000)
        assert all(outcomes), outcomes
        existed += sum(outcome.existed for outcome in outcomes)
        stored += sum(not outcome.existed for outcome in outcomes)
    return {"stored": stored, "existed": existed}


def count(store: PageStore, storage: NvmeStorage) -> dict[str, int]:
    """Where the slots are: each holds a page, is free, or is lost."""
    state = storage._state
    pages, free = len(state.index), sum(len(volume.free) for volume in state.volumes)
    return {
        "pages": pages,
        "leaked": state.table.slots - pages - free,
        "writing": len(state.writing),
        "found": store.exists(hashes(PAGES), timeout_ms=20_000),
    }


def main(root: str, endpoint: str, place: str) -> None:
    os.nice(1)
    options = NvmeOptions(
        (root,), capacity_bytes=3 * PAGES * SLOT, segment_bytes=64 * SLOT, free_floor_bytes=0
    )
    store, storage = open_tool_store(
        NAMESPACE, options, endpoint=endpoint, registry_options=REGISTRY
    )
    with store:
        reply("ready")
        for line in sys.stdin:
            done = race(store, int(place)) if line.strip() == "go" else count(store, storage)
            reply(json.dumps(done))


if __name__ == "__main__":
    main(*sys.argv[1:])
