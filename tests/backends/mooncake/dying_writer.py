"""Dies in the middle of a put: master, key. Its object has been begun and is never ended."""

from __future__ import annotations

import os
import sys

from mooncake.store import MooncakeDistributedStore

store = MooncakeDistributedStore()
assert store.setup("127.0.0.1", "P2PHANDSHAKE", 0, 0, "tcp", "", sys.argv[1]) == 0
assert store.batch_put_session_start([sys.argv[2]], [8256]) is not None
os._exit(0)
