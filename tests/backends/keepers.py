"""Keepers, as the tests of backends use them."""

from __future__ import annotations

from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from hicache_backends.storage import PageEntry


class Stubborn:
    """A keeper that lets nothing go until it is told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.lets_go = False
        self.asked: list[int] = []

    def may_evict(
        self, entries: Sequence[PageEntry], touched_ms: Sequence[int], deadline: Deadline
    ) -> list[bool]:
        self.asked.append(len(entries))
        return [self.lets_go] * len(entries)

    def gone(self, entries: Sequence[PageEntry]) -> None:
        return
