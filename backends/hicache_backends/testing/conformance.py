"""The suite that every backend passes: one class to subclass.

    class TestMyBackend(PageStorageConformance):
        def make_medium(self, directory: Path) -> Medium:
            return MyMedium(directory)

`Medium` (`hicache_backends.testing.medium`) opens stores on a fresh medium and, where the
backend allows it, reaches the stored bytes behind the store's back. Tests of what a medium does
not offer are skipped.
"""

from __future__ import annotations

from hicache_backends.testing.batches import BatchTests
from hicache_backends.testing.concurrency import ConcurrencyTests
from hicache_backends.testing.damage import DamageTests
from hicache_backends.testing.eviction import EvictionTests
from hicache_backends.testing.isolation import IsolationTests
from hicache_backends.testing.lifecycle import LifecycleTests
from hicache_backends.testing.limits import LimitTests
from hicache_backends.testing.locations import LocationTests
from hicache_backends.testing.state_machine import StateMachineTests


class PageStorageConformance(
    StateMachineTests,  # pytest runs the tests of the last base first, and this one is slowest
    ConcurrencyTests,
    LocationTests,
    LifecycleTests,
    IsolationTests,
    LimitTests,
    EvictionTests,
    DamageTests,
    BatchTests,
):
    """Everything that `PageStorage` promises. Define `make_medium`."""
