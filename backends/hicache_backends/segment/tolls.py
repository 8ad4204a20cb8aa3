"""How many pages went, why, and how long nobody had used them."""

from __future__ import annotations

from collections import Counter

_MOST_AGE = 32


class Tolls:
    """As `PageStorage.counters` tells them. The caller's lock guards it."""

    def __init__(self) -> None:
        self._causes: Counter[str] = Counter()
        self._ages: Counter[int] = Counter()

    def count(self, cause: str, idle_ms: int) -> None:
        """One page."""
        self._causes[cause] += 1
        self._ages[min(_MOST_AGE, (idle_ms // 1000).bit_length())] += 1

    def add(self, cause: str, pages: int) -> None:
        """Pages of which nobody knows when they were used."""
        self._causes[cause] += pages

    def counters(self) -> dict[str, int]:
        """By name."""
        causes = {f"evicted.{cause}": pages for cause, pages in self._causes.copy().items()}
        ages = {f"age.{n}": pages for n, pages in self._ages.copy().items()}
        return {**causes, **ages}
