"""Pages of several pools at once: the calls that SGLang makes for hybrid models."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np

from hicache_backends.deadline import Deadline
from hicache_storage.page_store import UNTOLD
from hicache_storage.sglang.identity import KV
from hicache_storage.sglang.policies import Lengths, lengths, trailing_pages, whole_prefix
from hicache_storage.sglang.pool_store import call_limit, settled
from hicache_storage.sglang.pools import Pools

ALL, TRAILING = "all_pages", "trailing_pages"


class Transfers:
    """Finds, reads and stores the parts of pages. Raises what `PoolStore` raises."""

    def __init__(self, pools: Pools) -> None:
        self._pools = pools

    def kv_prefix(self, keys: Sequence[str]) -> int:
        """Pages of the KV pool there are from the start."""
        return self._prefix(KV, keys, call_limit())

    def find(
        self, keys: Sequence[str], transfers: Sequence[Any]
    ) -> tuple[dict[str, int], list[int]]:
        """How far each pool reaches, and every prefix length (in pages) that all pools allow."""
        until = call_limit()
        found = self._prefix(KV, keys, until)
        reach = {KV: found} if found else {}
        legal: Lengths = np.ones(found + 1, np.bool_)
        for transfer in transfers:
            if not legal[1:].any():
                break
            name, policy = str(transfer.name), _value(transfer.hit_policy)
            if policy not in (ALL, TRAILING):
                continue  # another form of pages that are there anyway; it never gates a hit
            if policy == ALL:
                own = whole_prefix(self._prefix(name, keys[:found], until), found)
            else:
                present = self._present(name, keys[:found], until)
                own = trailing_pages(present, len(transfer.keys or ()))
            if own[1:].any():
                reach[name] = lengths(own)[-1]
            legal &= own
        return reach, lengths(legal)

    def get(self, transfer: Any, until: Deadline) -> list[bool]:
        """Read one pool's pages; for each whether its host page holds it now."""
        name, keys = str(transfer.name), list(transfer.keys or ())
        if self._pools.is_empty(name):
            return [True] * len(keys)
        pages = self._pools.get(name)
        if pages is None or not keys:
            return [False] * len(keys)
        return [outcome.ok for outcome in pages.get(keys, transfer.host_indices, until)]

    def set(self, transfer: Any, parent: str | None, until: Deadline) -> list[bool]:
        """Store one pool's pages; for each whether it's there now."""
        name, keys = str(transfer.name), list(transfer.keys or ())
        if self._pools.is_empty(name):
            return [True] * len(keys)
        pages = self._pools.get(name)
        if pages is None or not keys:
            return [False] * len(keys)
        if _value(transfer.hit_policy) != ALL:
            parent = UNTOLD  # the page before is seldom there: only a window or a state is kept
        return settled(pages.put(keys, transfer.host_indices, parent, until))

    def _prefix(self, name: str, keys: Sequence[str], until: Deadline) -> int:
        if self._pools.is_empty(name):
            return len(keys)
        pages = self._pools.get(name)
        return pages.exists(keys, until) if pages else 0

    def _present(self, name: str, keys: Sequence[str], until: Deadline) -> list[bool]:
        if self._pools.is_empty(name):
            return [True] * len(keys)
        pages = self._pools.get(name)
        return pages.present(keys, until) if pages else [False] * len(keys)


def result(result_class: Any, reach: dict[str, int], legal: list[int]) -> Any:
    """SGLang's `PoolTransferResult`; older ones know no list of lengths."""
    made = result_class(legal[-1] if legal else 0, dict(reach))
    if any(field.name == "restorable_prefix_pages" for field in dataclasses.fields(made)):
        made.restorable_prefix_pages = legal
    return made


def parent_of(extra_info: Any) -> str | None:
    """The page before a set's first one: its hash, None at the start of a chain, else UNTOLD.

    Older releases hand `(None,)` on where they were told nothing.
    """
    before = getattr(extra_info, "prefix_keys", None)
    if not isinstance(before, (list, tuple)):
        return UNTOLD
    if not before:
        return None
    return before[-1] if isinstance(before[-1], str) and before[-1] else UNTOLD


def _value(policy: Any) -> str:
    return str(getattr(policy, "value", policy))
