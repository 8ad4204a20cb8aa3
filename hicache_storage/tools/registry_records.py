"""What a registry keeps of a namespace beside its pages, and what can be wrong with that.

`faults` looks at what was read and asks nothing: a fault is there if it is found twice, the second
time when whatever was under way must have ended. Its mending is a few plain commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import msgpack

from hicache_backends.identity import DIGEST_BYTES, Namespace
from hicache_storage.tools.fsck_kinds import (
    CLAIMS,
    NAMES,
    STORE_RECORDS,
    STRAY_MEDIA,
    STRAY_SEQUENCES,
    UNKNOWN_NAMESPACES,
    UNKNOWN_STORES,
    UNLISTED,
)
from hicache_storage.tools.lying import Lying
from hicache_storage.tools.registry_access import RegistryAccess
from kvmanager import audit, keys
from kvmanager.namespaces import id_of

MAX_ITEMS = 1 << 16
"""Of one key; what is beyond is not looked at."""
_LONGEST_CLAIM_S = 3600
_TOKEN_BYTES = 8
_FIELDS_OF_MEDIA = b"mbfk"


class Fault(NamedTuple):
    """Something of one kind. `mend`: commands; none where only a person can tell. `shard`: the
    hash tag of their keys."""

    kind: str
    path: str
    detail: str
    shard: bytes
    mend: tuple[tuple[bytes, ...], ...] = ()


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
    processes that the registry hears of."""

    tag: bytes
    listed: bool
    names: Key
    stores: Key
    sequences: Key
    claims: dict[bytes, Key] = field(default_factory=dict)
    alive: set[bytes] = field(default_factory=set)

    @property
    def epoch(self) -> int | None:
        """None where the namespace has none that could be one."""
        return _whole(self.names.items.get(b"epoch"))

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
        return _whole(self.names.items.get(b"cleared")) or 0

    @property
    def media(self) -> list[bytes]:
        """Ids of the media that are listed."""
        return _ids(self.names.items.get(b"media", b""))

    @property
    def known_media(self) -> dict[bytes, bytes]:
        """Their uuids by id, as far as their records say."""
        uuids = {m: _uuid(self.names.items.get(b"m:" + m)) for m in self.media}
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
    if found.epoch is not None:
        for medium in found.media:
            found.claims[medium] = read(b"c%b%d.%b" % (tag, found.epoch, medium))
    return found


def faults(records: Records, here: Sequence[Lying], namespace: Namespace | None) -> Iterator[Fault]:
    """What is wrong with them. `here`: what lies of the namespace on media that can be seen;
    `namespace`: as its readable form on one of them says."""
    stores = {keys.medium_id(each.medium): each.stores() for each in here if each.owned}
    yield from _of_names(records, namespace)
    yield from _of_media(records, {keys.medium_id(each.medium): each.medium for each in here})
    yield from _of_stores(records, stores)
    yield from _of_claims(records)


def forgetting(tag: bytes, store: bytes) -> tuple[tuple[bytes, ...], ...]:
    """The commands that forget a store."""
    return (
        (b"HDEL", b"s" + tag, store),
        (b"HDEL", b"q" + tag, store),
        (b"UNLINK", b"b" + tag + store),
    )


def _of_names(records: Records, namespace: Namespace | None) -> Iterator[Fault]:
    tag, names = records.tag, records.names
    fault = partial(Fault, path=id_of(tag))
    if names.kind == "none":
        if records.listed:
            mend = ((b"SREM", keys.TAGS, tag),)
            yield fault(UNKNOWN_NAMESPACES, detail="", shard=keys.TAGS, mend=mend)
        return
    if problem := _problem(records):
        yield fault(NAMES, detail=problem, shard=tag, mend=_written_anew(records, namespace))
    elif not records.listed and b"forgetting" not in names.items:
        yield fault(UNLISTED, detail="", shard=keys.TAGS, mend=((b"SADD", keys.TAGS, tag),))


def _problem(records: Records) -> str:
    items = records.names.items
    if records.names.kind != "hash":
        return f"a {records.names.kind}"
    if records.namespace is None:
        return "its encoding cannot be read, or is another one's"
    if records.namespace.fingerprint != items.get(b"fingerprint"):
        return "its fingerprint is another one's"
    if records.epoch is None:
        return "no epoch"
    return "" if _whole(items.get(b"schema")) is not None else "no schema"


def _written_anew(records: Records, namespace: Namespace | None) -> tuple[tuple[bytes, ...], ...]:
    """What the media say, and the highest epoch that anything here speaks of."""
    if namespace is None:
        return ()
    name = b"n" + records.tag
    epoch = max([records.epoch or 0, records.cleared, *(f.epoch for f in records.facts.values())])
    written = (
        *(b"HSET", name, b"fingerprint", namespace.fingerprint, b"encoding", namespace.encode()),
        *(b"schema", b"%d" % keys.SCHEMA, b"epoch", b"%d" % epoch),
    )
    wrong_type = records.names.kind != "hash"
    return ((b"UNLINK", name), written) if wrong_type else (written,)


def _of_media(records: Records, here: Mapping[bytes, bytes]) -> Iterator[Fault]:
    """Fields about media that are not listed, and records of media that say another one."""
    tag, items = records.tag, records.names.items
    dropping = items.get(b"dropping", b"")
    known = {*records.media, *_ids(dropping)}
    mend: tuple[tuple[bytes, ...], ...]
    for name in items:
        letter, _, rest = name.partition(b":")
        medium = rest.rpartition(b".")[2]
        if not rest or letter not in (b"m", b"b", b"f", b"k") or medium in known:
            continue
        mend = ((b"HDEL", b"n" + tag, name),)
        if letter == b"f" and len(medium) == keys.MEDIUM_ID_BYTES:  # so many keys are to go first
            mend = ((b"HSET", b"n" + tag, b"dropping", dropping + medium),)
        path = f"{id_of(tag)} {_shown(name)}"
        yield Fault(STRAY_MEDIA, path, "no such medium is listed", tag, mend)
    for medium in records.media:
        uuid = _uuid(items.get(b"m:" + medium))
        if uuid is None or keys.medium_id(uuid) != medium:
            mend = ()
            if own := here.get(medium):
                packed: bytes = msgpack.packb([own, True], use_bin_type=False)
                mend = ((b"HSET", b"n" + tag, b"m:" + medium, packed),)
            yield Fault(STRAY_MEDIA, f"{id_of(tag)} m:{_shown(medium)}", "damaged", tag, mend)


def _of_stores(records: Records, here: Mapping[bytes, Mapping[bytes, str]]) -> Iterator[Fault]:
    """`here`: the stores on each medium (its id) that can be seen."""
    tag = records.tag
    for letter, key in ((b"s", records.stores), (b"q", records.sequences)):
        if key.kind not in ("hash", "none"):
            path = f"{letter.decode()}{tag.decode()}"
            yield Fault(STORE_RECORDS, path, f"a {key.kind}", tag, ((b"UNLINK", letter + tag),))
    at = {store: medium for medium, stores in here.items() for store in stores}
    facts, live = records.facts, records.live_stores
    for store, packed in records.stores.items.items():
        said = facts.get(store)
        path = f"{id_of(tag)} store {store[:DIGEST_BYTES].hex()}"
        if said is None or len(store) != DIGEST_BYTES:
            yield Fault(STORE_RECORDS, path, "unreadable", tag, forgetting(tag, store))
        elif store in live:
            continue  # its next heartbeat writes the record anew
        elif said.medium in here and store not in at:
            yield Fault(UNKNOWN_STORES, path, "", tag, forgetting(tag, store))
        elif store in at and said.medium != at[store]:
            mend = ((b"HSET", b"s" + tag, store, _moved(packed, at[store])),)
            yield Fault(STORE_RECORDS, path, "it is on another medium", tag, mend)
    for store in records.sequences.items:
        if store not in records.stores.items:
            path = f"{id_of(tag)} store {store[:DIGEST_BYTES].hex()}"
            yield Fault(STRAY_SEQUENCES, path, "", tag, ((b"HDEL", b"q" + tag, store),))


def _of_claims(records: Records) -> Iterator[Fault]:
    tag = records.tag
    for medium, key in records.claims.items():
        name = b"c%b%d.%b" % (tag, records.epoch or 0, medium)
        path = f"{id_of(tag)} claims on {_shown(medium)}"
        if key.kind not in ("hash", "none"):
            yield Fault(CLAIMS, path, f"a {key.kind}", tag, ((b"UNLINK", name),))
        elif key.kind == "hash" and key.ttl_ms < 0:
            mend = ((b"PEXPIRE", name, b"%d" % (_LONGEST_CLAIM_S * 1000)),)
            yield Fault(CLAIMS, path, "all without an end", tag, mend)
        latest_ms = (key.now_s + _LONGEST_CLAIM_S) * 1000
        for digest, claim in key.items.items():
            if digest == b"":
                continue
            end_ms = _whole(claim[_TOKEN_BYTES:])
            if len(digest) != DIGEST_BYTES or end_ms is None or end_ms > latest_ms:
                page = f"{path}: {digest[:DIGEST_BYTES].hex()}"
                yield Fault(CLAIMS, page, "", tag, ((b"HDEL", name, digest),))


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


def _moved(packed: bytes, medium: bytes) -> bytes:
    raw = list(msgpack.unpackb(packed, raw=True))
    raw[1] = medium
    fresh: bytes = msgpack.packb(raw, use_bin_type=False)
    return fresh


def _uuid(record: bytes | None) -> bytes | None:
    """Of a medium, as its record says."""
    try:
        raw: Any = msgpack.unpackb(record or b"", raw=True)
        return raw[0] if isinstance(raw[0], bytes) else None
    except (ValueError, TypeError, IndexError, KeyError, msgpack.UnpackException):
        return None


def _whole(value: bytes | None) -> int | None:
    """A number of digits only."""
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None


def _ids(joined: bytes) -> list[bytes]:
    size = keys.MEDIUM_ID_BYTES
    return [joined[i : i + size] for i in range(0, len(joined), size)]


def _shown(name: bytes) -> str:
    return name[:64].decode("utf-8", "backslashreplace")
