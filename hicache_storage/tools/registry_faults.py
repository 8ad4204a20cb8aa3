"""What can be wrong with a namespace's records in a registry, and what mends it.

Looks at what was read, and asks nothing. A fault is there if it is found twice, the second time
when whatever was under way must have ended. Its mending is a few plain commands.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

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
    UNREGISTERED,
)
from hicache_storage.tools.lying import Lying
from hicache_storage.tools.registry_records import Records, ids_of, uuid_of, whole
from kvmanager import keys
from kvmanager.control.namespaces import id_of

_LONGEST_CLAIM_S = 3600
_TOKEN_BYTES = 8


class Fault(NamedTuple):
    """Something of one kind, the same as another one of equal `name`. `mend`: commands, each on one
    key; none where only a person can tell. `medium`: that has to be seen to find it (its id)."""

    kind: str
    path: str
    detail: str
    mend: tuple[tuple[bytes, ...], ...] = ()
    medium: bytes = b""

    @property
    def name(self) -> tuple[str, str, str]:
        """What makes it the same in two looks."""
        return self.kind, self.path, self.detail


def faults(records: Records, here: Sequence[Lying], namespace: Namespace | None) -> Iterator[Fault]:
    """What is wrong with them. `here`: what lies of the namespace on media that can be seen;
    `namespace`: as its readable form on one of them says."""
    media = {keys.medium_id(each.medium): each.medium for each in here}
    users = {keys.medium_id(each.medium): each.stores() for each in here}
    owned = {keys.medium_id(each.medium) for each in here if each.owned}
    stores = {medium: users[medium] for medium in owned}
    left = {m: u for m, u in media.items() if any(not user for user in users[m].values())}
    yield from _of_names(records, namespace, left)
    yield from _of_media(records, media)
    yield from _of_unlisted_media(records, left)
    yield from _of_stores(records, stores)
    yield from _of_claims(records)


def forgetting(tag: bytes, store: bytes) -> tuple[tuple[bytes, ...], ...]:
    """The commands that forget a store."""
    return (
        (b"HDEL", b"s" + tag, store),
        (b"HDEL", b"q" + tag, store),
        (b"UNLINK", b"b" + tag + store),
    )


def _of_names(
    records: Records, namespace: Namespace | None, left: Mapping[bytes, bytes]
) -> Iterator[Fault]:
    """`left`: media with stores that nobody uses; the processes of others join by themselves."""
    tag, names = records.tag, records.names
    fault = partial(Fault, path=id_of(tag))
    if names.kind == "none":
        if namespace is not None:
            if left:
                listing = (b"SADD", keys.TAGS, tag)
                mend = (*_written_anew(records, namespace), *_with_media(records, left), listing)
                yield fault(UNREGISTERED, detail="", mend=mend)
        elif records.listed:
            mend = ((b"SREM", keys.TAGS, tag),)
            yield fault(UNKNOWN_NAMESPACES, detail="", mend=mend)
        return
    if problem := _problem(records):
        yield fault(NAMES, detail=problem, mend=_written_anew(records, namespace))
    if not records.listed and b"forgetting" not in names.items:
        yield fault(UNLISTED, detail="", mend=((b"SADD", keys.TAGS, tag),))


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
    return "" if whole(items.get(b"schema")) is not None else "no schema"


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
    wrong_type = records.names.kind not in ("hash", "none")
    return ((b"UNLINK", name), written) if wrong_type else (written,)


def _with_media(records: Records, more: Mapping[bytes, bytes]) -> tuple[tuple[bytes, ...], ...]:
    """List media as if a process had just been seen there."""
    name, seen_s = b"n" + records.tag, b"%d" % records.names.now_s
    facts = [b"media", b"".join([*records.media, *more]), b"seen", seen_s]
    for medium, uuid in more.items():
        packed: bytes = msgpack.packb([uuid, True], use_bin_type=False)
        facts += (b"m:" + medium, packed, b"b:" + medium, seen_s)
    return ((b"HSET", name, *facts),)


def _of_unlisted_media(records: Records, left: Mapping[bytes, bytes]) -> Iterator[Fault]:
    """Media with stores that nobody uses, so that nobody lists them."""
    known = {*records.media, *ids_of(records.names.items.get(b"dropping", b""))}
    more = {medium: uuid for medium, uuid in left.items() if medium not in known}
    if more and records.names.kind == "hash":
        path = f"{id_of(records.tag)} on {', '.join(uuid.hex() for uuid in more.values())}"
        yield Fault(STRAY_MEDIA, path, "not listed", _with_media(records, more), min(more))


def _of_media(records: Records, here: Mapping[bytes, bytes]) -> Iterator[Fault]:
    """Fields about media that are not listed, and records of media that say another one."""
    tag, items = records.tag, records.names.items
    dropping = items.get(b"dropping", b"")
    known = {*records.media, *ids_of(dropping), *here}
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
        yield Fault(STRAY_MEDIA, path, "no such medium is listed", mend)
    for medium in records.media:
        uuid = uuid_of(items.get(b"m:" + medium))
        if uuid is None or keys.medium_id(uuid) != medium:
            rest = b"".join(each for each in records.media if each != medium)
            mend = ((b"HSET", b"n" + tag, b"media", rest),)  # who is there lists it again
            if own := here.get(medium):
                packed: bytes = msgpack.packb([own, True], use_bin_type=False)
                mend = ((b"HSET", b"n" + tag, b"m:" + medium, packed),)
            yield Fault(STRAY_MEDIA, f"{id_of(tag)} m:{_shown(medium)}", "damaged", mend)


def _of_stores(records: Records, here: Mapping[bytes, Mapping[bytes, str]]) -> Iterator[Fault]:
    """`here`: the stores on each medium (its id) that can be seen."""
    tag = records.tag
    for letter, key in ((b"s", records.stores), (b"q", records.sequences)):
        if key.kind not in ("hash", "none"):
            path = f"{letter.decode()}{tag.decode()}"
            yield Fault(STORE_RECORDS, path, f"a {key.kind}", ((b"UNLINK", letter + tag),))
    at = {store: medium for medium, stores in here.items() for store in stores}
    facts, live = records.facts, records.live_stores
    for store, packed in records.stores.items.items():
        said = facts.get(store)
        path = f"{id_of(tag)} store {store[:DIGEST_BYTES].hex()}"
        if said is None or len(store) != DIGEST_BYTES:
            yield Fault(STORE_RECORDS, path, "unreadable", forgetting(tag, store))
        elif store in live:
            continue  # its next heartbeat writes the record anew
        elif said.medium in here and store not in at:
            yield Fault(UNKNOWN_STORES, path, "", forgetting(tag, store), said.medium)
        elif store in at and said.medium != at[store]:
            mend = ((b"HSET", b"s" + tag, store, _moved(packed, at[store])),)
            yield Fault(STORE_RECORDS, path, "it is on another medium", mend, at[store])
    for store in records.sequences.items:
        if store not in records.stores.items:
            path = f"{id_of(tag)} store {store[:DIGEST_BYTES].hex()}"
            yield Fault(STRAY_SEQUENCES, path, "", ((b"HDEL", b"q" + tag, store),))


def _of_claims(records: Records) -> Iterator[Fault]:
    tag = records.tag
    for medium, key in records.claims.items():
        name = b"c%b%d.%b" % (tag, records.epoch or 0, medium)
        path = f"{id_of(tag)} claims on {_shown(medium)}"
        if key.kind not in ("hash", "none"):
            yield Fault(CLAIMS, path, f"a {key.kind}", ((b"UNLINK", name),))
        elif key.kind == "hash" and key.ttl_ms < 0:
            mend = ((b"PEXPIRE", name, b"%d" % (_LONGEST_CLAIM_S * 1000)),)
            yield Fault(CLAIMS, path, "all without an end", mend)
        latest_ms = (key.now_s + _LONGEST_CLAIM_S) * 1000
        for digest, claim in key.items.items():
            if digest == b"":
                continue
            end_ms = whole(claim[_TOKEN_BYTES:])
            if len(digest) != DIGEST_BYTES or end_ms is None or end_ms > latest_ms:
                page = f"{path}: {digest[:DIGEST_BYTES].hex()}"
                yield Fault(CLAIMS, page, "", ((b"HDEL", name, digest),))


def _moved(packed: bytes, medium: bytes) -> bytes:
    raw = list(msgpack.unpackb(packed, raw=True))
    raw[1] = medium
    fresh: bytes = msgpack.packb(raw, use_bin_type=False)
    return fresh


def _shown(name: bytes) -> str:
    return name[:64].decode("utf-8", "backslashreplace")
