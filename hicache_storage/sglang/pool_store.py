"""The stored pages of one host pool: SGLang's calls on one side, a `PageStore` on the other."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Literal

from hicache_backends.deadline import Deadline
from hicache_backends.outcomes import Outcome
from hicache_backends.pages import Pages
from hicache_storage.page_store import MODE_OFF, MODE_READ, UNTOLD, PageStore
from hicache_storage.sglang.host_pages import (
    FlatPages,
    HostPages,
    is_flat,
    memory_of,
    tensor_pages,
)
from hicache_storage.sglang.samples import Samples

MAX_CALL_MS = 8000.0
"""SGLang gives a storage thread 10 s to come to its end before a flush or detach fails."""


class PoolStore:
    """One pool's pages. Raises what `PageStore` raises; the plugin turns it into misses.

    `form`: None for pages that come and go as tensors alone. `until`: when the whole call of
    SGLang's has to end, where it is about several pools.
    """

    def __init__(
        self, store: PageStore, form: HostPages | FlatPages | None, samples: Samples
    ) -> None:
        self.store = store
        self.form = form
        self._samples = samples
        self._registered = False

    @property
    def transfer(self) -> Literal["zero copy", "staging"]:
        """How bytes get between medium and host pool.

        A storage with memory of its own (`allocate`), or that is told of memory (`register`),
        moves only that in place.
        """
        storage = self.store.storage
        any_memory = storage.capabilities.zero_copy and not any(
            hasattr(storage, name) for name in ("allocate", "register")
        )
        direct = isinstance(self.form, HostPages) and (any_memory or self._registered)
        return "zero copy" if direct else "staging"

    def register(self, pool: Any) -> bool:
        """Make the pool's memory known to a storage that then moves it in place, by calls that
        stay as long as its transport does. False where it can't be, or not all of it."""
        register = getattr(self.store.storage, "register", None)
        if register and isinstance(self.form, HostPages):
            spans = memory_of(pool)
            self._registered = bool(spans) and all(register(*span) for span in spans)
        return self._registered

    def exists(self, keys: Sequence[str], until: Deadline | None = None) -> int:
        """Pages there are from the start."""
        return self.store.exists(keys, timeout_ms=self._left_ms(until))

    def present(self, keys: Sequence[str], until: Deadline | None = None) -> list[bool]:
        """For each page whether it's there."""
        return self.store.present(keys, timeout_ms=self._left_ms(until))

    def put(
        self,
        keys: Sequence[str],
        host_indices: Any,
        parent: str | None,
        until: Deadline | None = None,
    ) -> list[Outcome]:
        """Store host pages. A page that somebody else is storing is ok."""
        if isinstance(self.form, HostPages):
            pages = self.form(host_indices, len(keys), writable=False)
            return self._put(keys, pages, parent, until)
        return self.put_tensors(keys, self._flat().read(host_indices, len(keys)), parent, until)

    def get(
        self, keys: Sequence[str], host_indices: Any, until: Deadline | None = None
    ) -> list[Outcome]:
        """Read into host pages."""
        if isinstance(self.form, HostPages):
            return self._get(keys, self.form(host_indices, len(keys), writable=True), until)
        flat = self._flat()
        tensors = flat.targets(len(keys))
        outcomes = self.get_tensors(keys, tensors, until)
        flat.write(host_indices, tensors, outcomes)
        return outcomes

    def put_tensors(
        self,
        keys: Sequence[str],
        tensors: Sequence[Any],
        parent: str | None = UNTOLD,
        until: Deadline | None = None,
    ) -> list[Outcome]:
        """Store pages that are tensors, one each."""
        # a copy only where it is needed: torch lets go of the GIL at each operation
        held = [t if is_flat(t) else t.detach().contiguous().cpu() for t in tensors]
        return self._put(keys, tensor_pages(held, writable=False), parent, until)

    def get_tensors(
        self, keys: Sequence[str], tensors: Sequence[Any], until: Deadline | None = None
    ) -> list[Outcome]:
        """Read pages into tensors."""
        return self._get(keys, tensor_pages(tensors, writable=True), until)

    def close(self) -> None:
        """Leave the registry and close the storage."""
        self.store.close()

    def _put(
        self, keys: Sequence[str], pages: Pages, parent: str | None, until: Deadline | None
    ) -> list[Outcome]:
        began = time.monotonic()
        outcomes = self.store.set(keys, pages, parent=parent, timeout_ms=self._left_ms(until))
        written = [outcome for outcome in outcomes if outcome.ok and not outcome.existed]
        self._samples.backed_up(len(written), self._bytes(written), time.monotonic() - began)
        return outcomes

    def _get(self, keys: Sequence[str], pages: Pages, until: Deadline | None) -> list[Outcome]:
        began = time.monotonic()
        outcomes = self.store.get(keys, pages, timeout_ms=self._left_ms(until))
        read = [outcome for outcome in outcomes if outcome.ok]
        self._samples.prefetched(len(read), self._bytes(read), time.monotonic() - began)
        return outcomes

    def _left_ms(self, until: Deadline | None) -> float:
        return min(self.store.options.timeout_ms, (until or call_limit()).remaining_ms())

    def _bytes(self, outcomes: Sequence[Outcome]) -> int:
        return len(outcomes) * self.store.namespace.page_bytes

    def _flat(self) -> FlatPages:
        if not isinstance(self.form, FlatPages):
            raise TypeError("this pool's pages come as tensors alone")
        return self.form


def call_limit() -> Deadline:
    """When a call of SGLang's that begins now has to end."""
    return Deadline.after_ms(MAX_CALL_MS)


def settled(outcomes: Sequence[Outcome]) -> list[bool]:
    """For each page whether nothing is left to do: what the mode keeps from being stored did not
    fail, where SGLang would warn at every prompt."""
    return [outcome.ok or outcome in (MODE_OFF, MODE_READ) for outcome in outcomes]
