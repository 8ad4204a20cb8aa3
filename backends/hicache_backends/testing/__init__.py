"""What any backend must keep, as tests: subclass `conformance.PageStorageConformance`.

Needs pytest and hypothesis. Nothing else of this distribution imports this package.
"""

import pytest

pytest.register_assert_rewrite(
    "hicache_backends.testing.batches",
    "hicache_backends.testing.canaries",
    "hicache_backends.testing.concurrency",
    "hicache_backends.testing.damage",
    "hicache_backends.testing.eviction",
    "hicache_backends.testing.isolation",
    "hicache_backends.testing.lifecycle",
    "hicache_backends.testing.state_machine",
)
