"""What is stored in a namespace, to begin a mirror of it with."""

from __future__ import annotations

from dataclasses import dataclass

from kvmanager.control.events import listen
from kvmanager.control.namespaces import MediumRecord, StoreRecord, describe, members
from kvmanager.control.walk import STEP_BUCKETS, Walk
from kvmanager.flow import Flow
from kvmanager.keys import FIRST_BUCKETS
from kvmanager.replies import EpochMoved

STORE_BYTES = 16
STEP_PAGES = 512
"""Of a medium that has few; a millisecond of the server."""
_SPARSE_BUCKETS = 512


@dataclass(frozen=True, slots=True)
class Heading:
    """What a snapshot begins with. `position`: the event to go on after when it is complete;
    `fingerprint`: the key by which the namespace's digests are made of page hashes."""

    position: str
    fingerprint: bytes
    epoch: int
    media: tuple[MediumRecord, ...]
    stores: tuple[StoreRecord, ...]


@dataclass(frozen=True, slots=True)
class Pages:
    """Some of what a medium (8-letter id) holds: digest and store of each page; b"" where the
    location does not name a store."""

    medium: bytes
    pages: tuple[tuple[bytes, bytes], ...]


class Snapshot:
    """One snapshot, in short steps, each of which may be carried out over another connection.

    Where the namespace is cleared meanwhile it ends early: the event says the rest.
    """

    def __init__(self, tag: bytes) -> None:
        self._tag = tag
        self._walks: list[tuple[bytes, Walk]] = []

    @property
    def done(self) -> bool:
        """Whether there are no more steps."""
        return not self._walks

    def begin(self) -> Flow[Heading | None]:
        """The first step; None if there is no such namespace."""
        heard = yield from listen(self._tag)
        record = yield from describe(self._tag)
        if heard is None or record is None:
            return None
        stores = yield from members(self._tag)
        self._walks = [
            (medium.id, Walk(self._tag, record.epoch, medium.id, _step_buckets(medium.pages)))
            for medium in record.media
        ]
        return Heading(
            heard.last, record.namespace.fingerprint, record.epoch, record.media, tuple(stores)
        )

    def step(self) -> Flow[Pages]:
        """Some more pages. Raises Forgotten where the registry has lost the namespace."""
        medium, walk = self._walks[0]
        try:
            batch = yield from walk.step()
        except EpochMoved:
            self._walks.clear()
            return Pages(medium, ())
        if walk.done:
            self._walks.pop(0)
        pages = ((digest, where[:STORE_BYTES]) for digest, where in batch.pages)
        whole = tuple(
            (digest, store if len(store) == STORE_BYTES else b"") for digest, store in pages
        )
        return Pages(medium, whole)


def _step_buckets(pages: int) -> int:
    """More buckets a step where they hold little, for the same time of the server."""
    return min(_SPARSE_BUCKETS, max(STEP_BUCKETS, STEP_PAGES * FIRST_BUCKETS // (pages + 1)))
