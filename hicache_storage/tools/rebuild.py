"""Making a registry anew from what lies on the media."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hicache_backends.storage import PageEntry
from hicache_storage.tools.announce import announce
from hicache_storage.tools.lying import Lying
from kvmanager.endpoint import redacted
from kvmanager.options import RegistryOptions

_TICK_S = 0.25


@dataclass
class Rebuilt:
    """What was made known. `in_use`: stores whose own processes announce them; `cleared`: stores
    left out, since their pages are from before a clear."""

    registry: str
    namespaces: int = 0
    stores: int = 0
    pages: int = 0
    in_use: list[str] = field(default_factory=list)
    cleared: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain values by name."""
        return dataclasses.asdict(self)


def rebuild(
    endpoint: str,
    options: RegistryOptions,
    lying: Sequence[Lying],
    settle_s: float,
    say: Callable[[str], None],
) -> Rebuilt:
    """Register what lies on media and publish every page of stores that nobody uses, at the
    options' rate. Where processes use the media they are waited for first: they bring the
    namespaces' epochs back. Raises RegistryError, StorageUnavailable."""
    result = Rebuilt(redacted(endpoint), len({each.namespace for each in lying}))
    users = [each.stores() for each in lying]
    if any(user for stores in users for user in stores.values()):
        _wait(settle_s, say)
    for each, stores in zip(lying, users, strict=True):
        for store, user in stores.items():
            if user:
                result.in_use.append(each.path(store))
                continue
            pages = partial(_told, each, store, say)
            told = announce(endpoint, options, each.namespace, store, each.medium, pages)
            if told.cleared:
                result.cleared.append(each.path(store))
            result.stores += not told.cleared
            result.pages += told.pages
    return result


def _told(lying: Lying, store: bytes, say: Callable[[str], None]) -> Iterator[PageEntry]:
    told = 0
    for pages in lying.pages(store):
        say(f"{lying.path(store)}: {told:,} pages")
        yield from pages
        told += len(pages)


def _wait(seconds: float, say: Callable[[str], None]) -> None:
    until_s = time.monotonic() + seconds
    while (left_s := until_s - time.monotonic()) > 0:
        say(f"waiting for the processes that use the media: {left_s:.0f} s")
        time.sleep(min(left_s, _TICK_S))
