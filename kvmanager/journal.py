"""The last mutations of one store, kept for a registry that forgot some."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from kvmanager.scripts import Call

_BATCH_WEIGHT = 4
"""A batch takes the room of so many entries beside its own."""


@dataclass(slots=True)
class Batch:
    """One mutation: the call that carries it out, whatever the registry held before."""

    sequence: int
    call: Call
    entries: int


class Journal:
    """At most `max_entries` entries; the oldest batches go first. Sequences have no gaps."""

    def __init__(self, max_entries: int) -> None:
        self._max_entries = max_entries
        self._batches: deque[Batch] = deque()
        self._entries = 0  # counted along, so that any thread may ask

    def __len__(self) -> int:
        return self._entries

    @property
    def _weight(self) -> int:
        return self._entries + _BATCH_WEIGHT * len(self._batches)

    def append(self, batch: Batch) -> None:
        """Keep one more mutation."""
        self._batches.append(batch)
        self._entries += batch.entries
        while self._weight > self._max_entries and len(self._batches) > 1:
            self._entries -= self._batches.popleft().entries

    def covers(self, sequence: int) -> bool:
        """Whether every mutation after `sequence` is still here."""
        return bool(self._batches) and (
            self._batches[0].sequence - 1 <= sequence <= self._batches[-1].sequence
        )

    def after(self, sequence: int) -> Batch | None:
        """The mutation that follows `sequence`."""
        if not self._batches:
            return None
        n = sequence + 1 - self._batches[0].sequence
        return self._batches[n] if 0 <= n < len(self._batches) else None

    @property
    def start(self) -> int | None:
        """The sequence before the oldest mutation; None if there is none."""
        return self._batches[0].sequence - 1 if self._batches else None

    def clear(self) -> None:
        """Forget everything."""
        self._batches.clear()
        self._entries = 0

    def __iter__(self) -> Iterator[Batch]:
        return iter(tuple(self._batches))
