"""A process that stores a page and ends while its master is silent: master address."""

from __future__ import annotations

import sys

from hicache_backends.deadline import Deadline
from hicache_backends.mooncake.backend import MooncakeOptions, open_mooncake
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import NAMESPACE, Target, digests_of, put, source

storage = open_mooncake(NAMESPACE, MooncakeOptions(sys.argv[1]))
page = digests_of("page")
assert all(put(storage, page))
print("stored", flush=True)  # noqa: T201 - the answer
sys.stdin.readline()  # the master is hurt now
for _ in range(3):
    storage.get(page, Target(1).pages, Deadline.after_ms(100))
storage.put(page, source(page), [UNKNOWN], Deadline.after_ms(100))
print("closed", storage.close(timeout_ms=200), flush=True)  # noqa: T201 - as above
