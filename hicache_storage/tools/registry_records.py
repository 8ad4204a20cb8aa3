"""What a registry keeps of a namespace beside its pages."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgpack

from hicache_backends.identity import Namespace
from hicache_storage.tools.registry_access import RegistryAccess
from kvmanager import keys, reports
from kvmanager.control import audit

MAX_ITEMS = 1 << 16
"""Of one key; what is beyond is not looked at."""


class Key(NamedTuple):
    """A hash as it was read. `kind`: as Redis calls the type, "none" where there is no such key."""

    kind: str
    ttl_ms: int
    now_s: int
    items: dict[bytes, bytes]


@dataclass(frozen=True)
class StoreFacts:
    """What a store's record says."""

    process: bytes
    medium: bytes
    epoch: int

    @classmethod
    def read(cls, packed: bytes) -> StoreFacts | None:
        """None for what no member wrote."""
        try:
            raw: Any = msgpack.unpackb(packed, raw=True)
            process, medium, epoch = raw[0], raw[1], int(raw[2])
        except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException):
            return None
        sound = isinstance(process, bytes) and isinstance(medium, bytes)
        return cls(process, medium, epoch) if sound else None


@dataclass
class Records:
    """Everything that was read. `listed`: in the list of all; `claims`: by medium; `alive`:
    processes that the registry hears of; `held`: pages of a store, as its process last reported."""

    tag: bytes
    listed: bool
    names: Key
    stores: Key
    sequences: Key
    claims: dict[bytes, Key] = field(default_factory=dict)
    alive: set[bytes] = field(default_factory=set)
    held: dict[bytes, int] = field(default_factory=dict)

    @property
    def epoch(self) -> int | None:
        """None where the namespace has none that could be one."""
        return whole(self.names.items.get(b"epoch"))

    @property
    def namespace(self) -> Namespace | None:
        """None where it cannot be read, or is another one's."""
        try:
            said = Namespace.decode(self.names.items.get(b"encoding", b""))
        except (ValueError, TypeError, msgpack.UnpackException):
            return None
        return said if keys.tag(said.fingerprint) == self.tag else None

    @property
    def cleared(self) -> int:
        """The epoch that the last clear raised it to; 0 if there was none."""
        return whole(self.names.items.get(b"cleared")) or 0

    @property
    def media(self) -> list[bytes]:
        """Ids of the media that are listed."""
        return ids_of(self.names.items.get(b"media", b""))

    @property
    def known_media(self) -> dict[bytes, bytes]:
        """Their uuids by id, as far as their records say."""
        uuids = {m: uuid_of(self.names.items.get(b"m:" + m)) for m in self.media}
        return {medium: uuid or b"" for medium, uuid in uuids.items()}

    @property
    def facts(self) -> dict[bytes, StoreFacts]:
        """What the records of stores say, those that can be read."""
        read = {store: StoreFacts.read(packed) for store, packed in self.stores.items.items()}
        return {store: facts for store, facts in read.items() if facts is not None}

    @property
    def live_stores(self) -> set[bytes]:
        """Stores whose process the registry hears of."""
        return {store for store, facts in self.facts.items() if facts.process in self.alive}

    @property
    def void_stores(self) -> set[bytes]:
        """Stores whose pages are from before a clear that they have not carried out."""
        return {store for store, facts in self.facts.items() if facts.epoch < self.cleared}


def read_records(access: RegistryAccess, tag: bytes, *, listed: bool) -> Records:
    """Read them, in small parts. Raises RegistryError."""
    read = partial(_key, access, tag)
    found = Records(tag, listed, read(b"n" + tag), read(b"s" + tag), read(b"q" + tag))
    for facts in found.facts.values():
        key = b"r" + tag + facts.process
        if facts.process not in found.alive and access.ask(partial(audit.ask, b"EXISTS", key), tag):
            found.alive.add(facts.process)
    reported = access.ask(partial(reports.records, tag, sorted(found.alive)), tag)
    for record in reported.values():
        found.held.update({gauges.store: gauges.pages for gauges in record.gauges.stores})
    if found.epoch is not None:
        for medium in found.media:
            found.claims[medium] = read(b"c%b%d.%b" % (tag, found.epoch, medium))
    return found


def uuid_of(record: bytes | None) -> bytes | None:
    """Of a medium, as its record says."""
    try:
        raw: Any = msgpack.unpackb(record or b"", raw=True)
        return raw[0] if isinstance(raw[0], bytes) else None
    except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException):
        return None


def whole(value: bytes | None) -> int | None:
    """A number of digits only."""
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None


def ids_of(joined: bytes) -> list[bytes]:
    """The ids of media that a field lists, one after another."""
    size = keys.MEDIUM_ID_BYTES
    return [joined[i : i + size] for i in range(0, len(joined), size)]


def _key(access: RegistryAccess, tag: bytes, name: bytes) -> Key:
    """A hash, up to so many fields."""
    items: dict[bytes, bytes] = {}
    cursor = b"0"
    while True:
        found = access.ask(partial(audit.part, name, cursor), tag)
        items.update(found.pairs)
        cursor = found.after
        if cursor == b"0" or len(items) >= MAX_ITEMS:
            return Key(found.kind, found.ttl_ms, found.now_s, items)
