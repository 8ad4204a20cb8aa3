"""The pages of one namespace that lie on a medium, to be compared with what the registry says.

Nothing is opened as a store, locked or changed; memory holds one segment's records at a time.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hicache_backends.errors import StorageUnavailable
from hicache_backends.identity import DIGEST_BYTES, Namespace
from hicache_backends.native_calls import valid_records
from hicache_backends.segment.format import LOCATION_BYTES, RECORD, RECORD_BYTES, Location
from hicache_backends.segment.plain import plain_size
from hicache_backends.segment.reclaim import store_directories
from hicache_backends.segment.segment import data_path, segment_files, slot_bytes
from hicache_backends.storage import PageEntry
from hicache_storage.tools.clearing import delete_store
from hicache_storage.tools.media import readable_namespace
from hicache_storage.tools.roots import Root

Entry = tuple[bytes, bytes]
"""Digest and location of a page, as the registry knows it."""

NO_LOCATION = "no location of this namespace"
NO_STORE = "its store is not there"
NO_SEGMENT = "its segment is not there"
OTHER_RECORD = "another page, or none, is there"
NO_OBJECT = "its object is not there"

_PLACE = np.dtype(
    [
        ("store", f"V{DIGEST_BYTES}"),
        ("segment", "<u4"),
        ("slot", "<u4"),
        ("length", "<u4"),
        ("generation", "<u8"),
        ("checksum", "<u8"),
    ]
)


class Lying(ABC):
    """What lies on one medium (its uuid) of one namespace. Raises StorageUnavailable."""

    owned = True
    """Whether each page is one store's, which alone may change it."""

    def __init__(self, name: str, medium: bytes, namespace: Namespace) -> None:
        self.name = name
        self.medium = medium
        self.namespace = namespace

    @abstractmethod
    def stores(self) -> dict[bytes, str]:
        """The stores there by uuid, and who has each open, "" for nobody."""

    @abstractmethod
    def pages(self, store: bytes) -> Iterator[list[PageEntry]]:
        """Every page of a store, some at a time."""

    @abstractmethod
    def misfits(self, entries: Sequence[Entry]) -> list[str]:
        """For each entry of the registry what is wrong with it right now, "" if it fits."""

    def path(self, store: bytes) -> str:
        """Where a store lies."""
        return f"{self.name}: {store.hex()}"

    def delete(self, store: bytes) -> str:
        """Delete a store if nobody uses it; "" or why it is still there."""
        return "it is no store that could be deleted"


class LyingSegments(Lying):
    """In the segments of stores on a root."""

    def __init__(self, root: Root, medium: bytes, namespace: Namespace) -> None:
        super().__init__(root.path, medium, namespace)
        self._root = root
        self._fingerprint = namespace.fingerprint.hex()

    def stores(self) -> dict[bytes, str]:
        # held, or looking at a lock might keep a process from its store
        with explained_reading(self.name), self._root.held():
            return self._root.run(self._holders)

    def path(self, store: bytes) -> str:
        return f"{self.name}/{self._fingerprint}/{store.hex()}"

    def delete(self, store: bytes) -> str:
        return delete_store(self._root, self.path(store))

    def pages(self, store: bytes) -> Iterator[list[PageEntry]]:
        path = self.path(store)
        with explained_reading(path):
            numbers = self._root.run(lambda: sorted({n for n, _ in segment_files(path)}))
        for number in numbers:
            records = self._records(store, number)
            slots = np.flatnonzero(records["bytes"])
            yield _entries(store, number, slots, records[slots])

    def misfits(self, entries: Sequence[Entry]) -> list[str]:
        wrong = [""] * len(entries)
        rows = [i for i, (_, location) in enumerate(entries) if len(location) == LOCATION_BYTES]
        for i in set(range(len(entries))) - set(rows):
            wrong[i] = NO_LOCATION
        places = np.frombuffer(b"".join(entries[i][1] for i in rows), _PLACE)
        digests = np.frombuffer(b"".join(entries[i][0] for i in rows), f"V{DIGEST_BYTES}")
        here = self._here(places)
        groups: dict[tuple[bytes, int], list[int]] = {}
        for n, (i, place) in enumerate(zip(rows, places, strict=True)):
            store = place["store"].item()
            if place["length"] != self.namespace.page_bytes:
                wrong[i] = NO_LOCATION
            elif store not in here:
                wrong[i] = NO_STORE
            else:
                groups.setdefault((store, int(place["segment"])), []).append(n)
        for (store, number), members in groups.items():
            records = self._records(store, number)
            fits = _fit(records, places[members], digests[members])
            for n, fit in zip(members, fits.tolist(), strict=True):
                if not fit:
                    wrong[rows[n]] = OTHER_RECORD if len(records) else NO_SEGMENT
        return wrong

    def _here(self, places: NDArray[np.void]) -> set[bytes]:
        """Which stores of these places are there."""
        if not len(places):
            return set()
        with explained_reading(self.name):
            return set(self._root.run(self._paths))

    def _holders(self) -> dict[bytes, str]:
        return {store: self._root.holder(path).in_use_by for store, path in self._paths().items()}

    def _paths(self) -> dict[bytes, str]:
        found = store_directories(self.name, self._fingerprint)
        return {bytes.fromhex(Path(path).name): path for _, path in found}

    def _records(self, store: bytes, number: int) -> NDArray[np.void]:
        """A record a slot, zeros where no page of this namespace lies; none without the files."""
        path = self.path(store)

        def read() -> bytes | bytearray:
            # on 3FS slots may be larger, and files are sparse and as large as they say at least
            slots = plain_size(data_path(path, number)) // slot_bytes(self.namespace.page_bytes)
            return self._root.records(path, number)[: slots * RECORD_BYTES]

        try:
            raw = self._root.run(read)
        except TimeoutError as error:
            raise StorageUnavailable(f"{path} does not answer: is its mount hung?") from error
        except OSError:  # as it is to a store that reads there
            return np.empty(0, RECORD)
        packed = memoryview(raw)[: len(raw) // RECORD_BYTES * RECORD_BYTES]
        records = np.frombuffer(packed, RECORD).copy()
        page_bytes = self.namespace.page_bytes
        whole = valid_records(packed) & (records["bytes"] == page_bytes)
        records[~whole] = np.zeros((), RECORD)
        return records


@dataclass(frozen=True)
class LyingMedium:
    """A medium that can be seen, its uuid, and what lies there by namespace. `empty`: of one that
    nothing lies there of any more."""

    uuid: bytes
    found: list[Lying]
    empty: Callable[[Namespace], Lying]


def lying_in(root: Root) -> LyingMedium | None:
    """What lies on a root; namespaces whose readable form is missing are left out. None where its
    uuid is unknown, since its `.medium` is damaged. Raises StorageUnavailable."""
    with explained_reading(root.path), root.held() as facts:
        names = root.run(lambda: sorted({name for name, _ in store_directories(root.path)}))
        known = [readable_namespace(root, name) for name in names]
    if not facts.medium:
        return None
    uuid = bytes.fromhex(facts.medium)
    found: list[Lying] = [LyingSegments(root, uuid, namespace) for namespace in known if namespace]
    return LyingMedium(uuid, found, partial(LyingSegments, root, uuid))


@contextlib.contextmanager
def explained_reading(path: str) -> Iterator[None]:
    """Raises StorageUnavailable for an OSError."""
    try:
        yield
    except OSError as error:
        raise StorageUnavailable(f"{path} cannot be read: {error.strerror or error}") from error


def _fit(
    records: NDArray[np.void], places: NDArray[np.void], digests: NDArray[np.void]
) -> NDArray[np.bool_]:
    """For each place in one segment whether its record says the same."""
    fits: NDArray[np.bool_] = places["slot"] < len(records)
    if len(records):
        there = records[np.where(fits, places["slot"], 0)]
        fits = fits & (there["digest"] == digests)
        fits &= there["generation"] == places["generation"]
        fits &= there["checksum"] == places["checksum"]
    return fits


def _entries(
    store: bytes, number: int, slots: NDArray[np.int64], records: NDArray[np.void]
) -> list[PageEntry]:
    return [
        PageEntry(
            digest,
            parent,
            Location(store, number, slot, length, generation, checksum).pack(),
        )
        for slot, digest, parent, length, generation, checksum in zip(
            slots.tolist(),
            records["digest"].tolist(),
            records["parent"].tolist(),
            records["bytes"].tolist(),
            records["generation"].tolist(),
            records["checksum"].tolist(),
            strict=True,
        )
    ]
