"""Between a store that evicts and the registry that knows who still reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.errors import RegistryError
from hicache_backends.storage import PageEntry
from kvmanager.model import Removal
from kvmanager.registry import Registry


class RegistryKeeper:
    """A `Keeper` that asks the registry. Without an answer a page may go: the registry only hints,
    and readers elsewhere verify what they read."""

    def __init__(
        self, registry: Registry | None, timeout_ms: float, on_evicted: Callable[[int], None]
    ) -> None:
        self._registry = registry
        self._timeout_ms = timeout_ms
        self._on_evicted = on_evicted

    def may_evict(self, entries: Sequence[PageEntry], touched_ms: Sequence[int]) -> list[bool]:
        allowed = self._ask(entries, touched_ms)
        self._on_evicted(sum(allowed))
        return allowed

    def gone(self, entries: Sequence[PageEntry]) -> None:
        if self._registry is None or not entries:
            return
        try:
            self._registry.remove(entries, Deadline.after_ms(self._timeout_ms))
        except RegistryError:
            return  # the session has journalled it

    def _ask(self, entries: Sequence[PageEntry], touched_ms: Sequence[int]) -> list[bool]:
        if self._registry is None:
            return [True] * len(entries)
        try:
            answers = self._registry.remove(
                entries, Deadline.after_ms(self._timeout_ms), touched_ms=touched_ms
            )
        except RegistryError:
            return [True] * len(entries)
        return [answer is Removal.REMOVED for answer in answers]
