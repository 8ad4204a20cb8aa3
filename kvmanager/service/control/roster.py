"""All namespaces, as several requests at once want them."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from kvmanager import keys, namespaces
from kvmanager.flow import Flow, T
from kvmanager.namespaces import NamespaceRecord

FRESH_S = 2.0
"""A list of all namespaces is used again for so long."""
MAX_NAMESPACES = 65_536
_TAGS_A_STEP = 256
_AT_ONCE = 16


class Run(Protocol):
    """Carries a flow out on the shard of a hash tag."""

    async def __call__(self, flow: Flow[T], tag: bytes) -> T: ...


class Roster:
    """Reads them at most once in `FRESH_S`, however many ask."""

    def __init__(self) -> None:
        self._records: list[NamespaceRecord] = []
        self._until_s = 0.0
        self._reading = asyncio.Lock()

    async def all(self, run: Run) -> list[NamespaceRecord]:
        """In the order of their ids. Raises what `run` does."""
        async with self._reading:
            if time.monotonic() >= self._until_s:
                self._records = await read_all(run)
                self._until_s = time.monotonic() + FRESH_S
            return self._records

    def expire(self) -> None:
        """Something was changed: the next one that asks gets it."""
        self._until_s = 0.0


async def read_tags(run: Run) -> list[bytes]:
    """The tags of all namespaces, at most `MAX_NAMESPACES`, in the order of their ids."""
    tags: set[bytes] = set()
    cursor = b"0"
    while len(tags) < MAX_NAMESPACES:
        cursor, some = await run(namespaces.tags(cursor, _TAGS_A_STEP), keys.TAGS)
        tags.update(some)
        if cursor == b"0":
            break
    return sorted(tags, key=namespaces.id_of)[:MAX_NAMESPACES]


async def read_all(run: Run) -> list[NamespaceRecord]:
    """All namespaces, a few at once, in the order of their ids."""
    tags = await read_tags(run)
    records: list[NamespaceRecord] = []
    for start in range(0, len(tags), _AT_ONCE):
        some = (run(namespaces.describe(tag), tag) for tag in tags[start : start + _AT_ONCE])
        records += [record for record in await asyncio.gather(*some) if record is not None]
    return records
