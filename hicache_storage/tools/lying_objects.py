"""Pages as objects, to be compared with what the registry says of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence

from hicache_backends.identity import Namespace
from hicache_backends.segment.format import Location
from hicache_backends.storage import UNKNOWN, PageEntry
from hicache_storage.tools.lying import NO_LOCATION, NO_OBJECT, Entry, Lying, LyingMedium
from hicache_storage.tools.objects import ObjectMedium, later

_AT_ONCE = 1024


class LyingObjects(Lying):
    """The objects of one namespace, as they were listed. They are nobody's: one store that stands
    for the medium is told of as theirs."""

    owned = False

    def __init__(
        self, objects: ObjectMedium, medium: bytes, namespace: Namespace, keys: Sequence[str]
    ) -> None:
        super().__init__(objects.store.name, medium, namespace)
        self._objects = objects
        self._keys = {bytes.fromhex(key.rpartition("/")[2]): key for key in keys}
        self.store = hashlib.blake2b(medium, digest_size=16, person=b"hicache-objects").digest()

    def stores(self) -> dict[bytes, str]:
        return {self.store: ""}

    def pages(self, store: bytes) -> Iterator[list[PageEntry]]:
        """With a checksum that readers take for unknown: they verify the object's own."""
        location = Location(self.store, 0, 0, self.namespace.page_bytes, 1, 0).pack()
        digests = list(self._keys)
        for start in range(0, len(digests), _AT_ONCE):
            yield [PageEntry(d, UNKNOWN, location) for d in digests[start : start + _AT_ONCE]]

    def misfits(self, entries: Sequence[Entry]) -> list[str]:
        wrong = [self._misfit(location) for _, location in entries]
        prefix = self.namespace.fingerprint.hex()
        unlisted = [
            i for i, (d, _) in enumerate(entries) if not wrong[i] and d not in self._keys
        ]  # written since, perhaps
        for start in range(0, len(unlisted), _AT_ONCE):
            rows = unlisted[start : start + _AT_ONCE]
            names = [entries[i][0].hex() for i in rows]
            keys = [f"{prefix}/{name[:2]}/{name}" for name in names]
            there = self._objects.store.exists(keys, later())
            for i, here in zip(rows, there, strict=True):
                wrong[i] = "" if here else NO_OBJECT
        return wrong

    def _misfit(self, location: bytes) -> str:
        try:
            length = Location.unpack(location).length
        except ValueError:
            return NO_LOCATION
        return "" if length == self.namespace.page_bytes else NO_LOCATION


def lying_objects(objects: ObjectMedium) -> LyingMedium | None:
    """The objects of a medium, by namespace; those whose readable form is missing are left out.
    None where there is nothing at all. Raises StorageUnavailable."""
    report = objects.read()
    if not report.namespaces and objects.store.read(".medium", later()) is None:
        return None
    uuid = objects.store.medium(later())
    found: list[Lying] = [
        LyingObjects(objects, uuid, each.namespace, each.pages)
        for each in report.namespaces
        if each.namespace
    ]
    return LyingMedium(uuid, found, lambda namespace: LyingObjects(objects, uuid, namespace, ()))
