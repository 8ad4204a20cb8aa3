"""What a page store counts since its opening, for its reports to the registry.

Kept apart from the Prometheus metrics, which stores of equal labels share, but counted with them:
`Metrics` and the parts of the store say each thing once.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict, deque
from collections.abc import Sequence

from hicache_backends.deadline import Deadline
from kvmanager import figures
from kvmanager.reports import MAX_HOT, Hot

_PLACES = 64
_Counts = Sequence[tuple[str, int]]


class Tally:
    """Counters by their names in `kvmanager.figures`. Thread safe, and nobody waits: what is said
    while another thread adds up is left for that one or the next."""

    def __init__(self, backend: str = "other") -> None:
        self._kind = figures.kind(backend)
        self._took = {
            operation: [f"op.{self._kind}.{operation}.{n}" for n in range(figures.MOST_BUCKET + 1)]
            for operation in figures.OPERATIONS
        }
        self._said: deque[_Counts] = deque()
        self._loads: deque[tuple[bytes, int]] = deque()
        self._adding = threading.Lock()
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._hot = HotPages()

    @property
    def kind(self) -> str:
        """How counters call the backend."""
        return self._kind

    def add(self, *counts: tuple[str, int]) -> None:
        """Count things by name."""
        if not self._adding.acquire(blocking=False):
            self._said.append(counts)
            return
        try:
            if self._said or self._loads:
                self._drain()
            sums = self._counts
            for name, n in counts:
                sums[name] += n
        finally:
            self._adding.release()

    def took(self, operation: str, seconds: float, *counts: tuple[str, int], late: bool) -> None:
        """Count a call, one of `figures.OPERATIONS`, and things with it. `late`: it met its
        deadline."""
        name = self._took[operation][figures.bucket(seconds * 1e6)]
        if late:
            self.add((name, 1), *counts, (f"late.{self._kind}.{operation}", 1))
        else:
            self.add((name, 1), *counts)

    def asked(self, operation: str, began_ns: int, deadline: Deadline) -> None:
        """Count a call to the registry, which has just returned."""
        now_ns = time.monotonic_ns()
        self.took(operation, (now_ns - began_ns) / 1e9, late=now_ns >= deadline.at_ns)

    def loaded(self, first: bytes, pages: int) -> None:
        """A load of so many pages began with the page of this digest."""
        self._loads.append((first, pages))

    def counters(self) -> dict[str, int]:
        """Everything since the opening."""
        with self._adding:
            self._drain()
            return dict(self._counts)

    def hot(self) -> tuple[Hot, ...]:
        """The first pages of most loads since this was last asked, the hottest first."""
        with self._adding:
            self._drain()
            found, self._hot = self._hot, HotPages()
        return found.top(MAX_HOT)

    def _drain(self) -> None:
        while self._said:
            for name, n in self._said.popleft():
                self._counts[name] += n
        while self._loads:
            self._hot.add(*self._loads.popleft())


class HotPages:
    """The most frequent of a stream in bounded memory (space-saving): a newcomer takes the place,
    and the count, of the least frequent."""

    def __init__(self, places: int = _PLACES) -> None:
        self._places = places
        self._loads: dict[bytes, int] = {}
        self._pages: dict[bytes, int] = {}

    def add(self, digest: bytes, pages: int) -> None:
        """One load."""
        loads = self._loads.get(digest, 0)
        moved = 0
        if not loads and len(self._loads) >= self._places:
            least = min(self._loads, key=self._loads.__getitem__)
            loads, moved = self._loads.pop(least), self._pages.pop(least)
        self._loads[digest] = loads + 1
        self._pages[digest] = self._pages.get(digest, moved) + pages

    def top(self, count: int) -> tuple[Hot, ...]:
        """The most loaded ones."""
        order = sorted(self._loads, key=self._loads.__getitem__, reverse=True)
        return tuple(Hot(d, self._loads[d], self._pages[d]) for d in order[:count])
