"""Between a store that evicts and the registry that knows who still reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError
from hicache_backends.storage import PageEntry
from kvmanager.model import Removal
from kvmanager.registry import Registry

_GONE_MS = 100
"""What the registry may take to hear of pages that are gone; else its session tells it later."""


class RegistryKeeper:
    """A `Keeper` that asks the registry. Without an answer a page may go: the registry only hints,
    and readers elsewhere verify what they read."""

    def __init__(self, registry: Registry | None, on_evicted: Callable[[int], None]) -> None:
        self._registry = registry
        self._on_evicted = on_evicted

    def may_evict(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
    ) -> list[bool]:
        allowed = self._ask(entries, touched_ms, deadline)
        self._on_evicted(sum(allowed))
        return allowed

    def gone(self, entries: Sequence[PageEntry]) -> None:
        if self._registry is None or not entries:
            return
        try:
            self._registry.remove(entries, Deadline.after_ms(_GONE_MS))
        except RegistryError:
            return  # the session has journalled it

    def _ask(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
    ) -> list[bool]:
        if self._registry is None:
            return [True] * len(entries)
        # half the time: the write must still fit in when the registry is stuck
        share = Deadline.after_ms(max(deadline.remaining_ms() / 2, 1))
        try:
            answers = self._registry.remove(entries, share, touched_ms=touched_ms)
        except RegistryError:
            return [True] * len(entries)
        return [answer is Removal.REMOVED for answer in answers]
