"""The words that the registry's callers and its scripts share."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum

from hicache_backends.outcomes import Reason
from hicache_backends.storage import PageEntry

MAX_KEYS = 1024
"""Keys of one script call; longer batches are split by the client."""
MAX_PROBES = 2048
"""Keys times media of one lookup's script call: some 2 us each, while nobody else is served."""
MAX_LOCATION_BYTES = 48


@dataclass(frozen=True, slots=True)
class Member:
    """One store of one process, as the registry knows it.

    `process` and `store` are uuids of 16 bytes; `medium` that of the medium the store lies on
    (16 bytes); `store` and `medium` are b"" for a visitor, who holds no pages and leaves nothing
    behind. `shared`: other processes may reach that medium, so that claims are worth it.
    `server` names the set of processes (ranks) that answer together.
    """

    process: bytes
    host: str
    server: str
    store: bytes
    medium: bytes
    shared: bool = True
    rank: int = 0


TOOL = "hicache-storage fsck"
"""The `server` of a member that makes the pages of a store known that no process uses: it is none
that operators start, lose or give orders to."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """One entry a key: the location of the nearest copy (b"" if none) and why there is none."""

    locations: list[bytes]
    reasons: list[Reason | None]

    @property
    def prefix(self) -> int:
        """Keys found from the start without a gap."""
        try:
            return self.locations.index(b"")
        except ValueError:
            return len(self.locations)


class Claim(Enum):
    """The answer to a claim of one page."""

    GRANTED = 0
    STORED = 1  # on this medium already
    ELSEWHERE = 2  # another process is writing it right now


class Published(Enum):
    """The answer to the publication of one page."""

    OK = 0
    DUPLICATE = 1  # another store of this medium was first: free the slot


class Removal(Enum):
    """The answer to the removal of one page."""

    REMOVED = 0  # or was not there
    TOUCHED = 1  # read by another process since: keep it
    PARENT = 2  # pages that follow it are still stored, here or elsewhere: keep it


class State(Enum):
    """How much the registry can be believed right now."""

    UP = "up"
    DOWN = "down"  # breaker open: local only
    REBUILDING = "rebuilding"  # this store's pages are being announced again


@dataclass(frozen=True, slots=True)
class Orders:
    """What a heartbeat's reply tells the process to do."""

    epoch: int  # of the namespace; higher than known: everything older was cleared
    mode: str | None = None
    clear: bool = False  # the store's pages are older than the epoch: drop them
    bad: tuple[PageEntry, ...] = ()  # of the own store, which others read and found wrong
    limit_bytes: int | None = None  # the store's share of its tenant's quota; None: no quota
    ttl_ms: int | None = None  # pages that were not used for so long are to go; None: never


def first_token(process: bytes, store: bytes) -> int:
    """The claims of a store have tokens that count from this number, modulo 2^64."""
    return int.from_bytes(hashlib.blake2b(process + store, digest_size=8).digest(), "big")


EntrySource = Callable[[], Iterator[PageEntry]]
"""Every page that a store holds, for announcing all of them again."""
