"""A process with a store on 3FS, driven over its standard streams."""

from __future__ import annotations

import json
import sys
import uuid
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from hicache_backends.testing.canaries import NAMESPACE, PAGE_BYTES
from hicache_backends.threefs import directory
from hicache_backends.threefs.backend import ThreeFsOptions, open_threefs
from tests.backends.nvme_medium import RECORD_BYTES, slot_bytes
from tests.backends.segment.worker import Worker, serve

SLOT = slot_bytes(PAGE_BYTES) + RECORD_BYTES


class ThreeFsWorker(Worker):
    """A process that has a store open on `root`; keywords as for `options`, and `uuid`: what the
    process is given for a fresh name."""

    module = __name__


def options(root: Path, *, pages: int = 256, segment_pages: int = 8, **more: Any) -> ThreeFsOptions:
    """Room for `pages` pages, in segments of `segment_pages`."""
    fixed = {
        "capacity_bytes": pages * SLOT,
        "segment_bytes": segment_pages * SLOT,
        "free_floor_bytes": 0,
        "staging_bytes": 8 << 20,
        "rings": 2,
        "io_engine": "usrbio",
        "ring_client": "own",
    }
    return ThreeFsOptions(str(root), **{**fixed, **more})


def _main() -> None:
    root, more = json.loads(sys.argv[1])
    name = more.pop("uuid", "")
    if name:
        given = [uuid.UUID(name)]
        names = SimpleNamespace(uuid4=lambda: given.pop() if given else uuid.uuid4())
        setattr(directory, "uuid", names)  # noqa: B010 - all that is used of the module
    serve(open_threefs(NAMESPACE, options(Path(root), **more), shared=True))


if __name__ == "__main__":
    _main()
