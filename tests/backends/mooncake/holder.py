"""A process that gives a Mooncake cluster memory: segment bytes, master. Ends with its input."""

from __future__ import annotations

import sys

from mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
result = store.setup("127.0.0.1", "P2PHANDSHAKE", int(sys.argv[1]), 0, "tcp", "", sys.argv[2])
print("ready" if result == 0 else f"setup failed: {result}", flush=True)  # noqa: T201 - the answer
sys.stdin.read()
store.close()
