"""Which namespaces there are, what lies in each, and whose stores are in it.

Each function is a flow on the shard of one hash tag, in steps of a few milliseconds of the server.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import msgpack

from hicache_backends.errors import RegistryRefused
from hicache_backends.identity import Namespace
from kvmanager import keys
from kvmanager.flow import Flow, answer
from kvmanager.model import TOOL
from kvmanager.scripts import Call

ID_BYTES = 9
MAX_STORES = 4096
"""Of one namespace; what is beyond is not listed."""
_STORES_A_STEP = b"128"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class MediumRecord:
    """A medium as one namespace knows it. `id`: its 8 letters in key names; `pages`: of this
    namespace, there; `seen_s`: last heartbeat of a store there."""

    id: bytes
    uuid: bytes
    shared: bool
    seen_s: int
    pages: int


@dataclass(frozen=True, slots=True)
class NamespaceRecord:
    """A namespace. `tag`: its hash tag, braces included; `hits`: pages found by lookups; `mode` and
    `ttl_ms`: set for it, `tenant_mode` and `tenant_ttl_ms`: copied from its tenant's settings;
    `limited`: how many of its stores have a limit; `pins`: how many pages are pinned."""

    tag: bytes
    namespace: Namespace
    epoch: int
    media: tuple[MediumRecord, ...]
    stores: int
    hits: int
    seen_s: int
    mode: str | None = None
    ttl_ms: int | None = None
    tenant_mode: str | None = None
    tenant_ttl_ms: int | None = None
    limited: int = 0
    pins: int = 0

    @property
    def id(self) -> str:
        """By which URLs and documents call it."""
        return id_of(self.tag)

    @property
    def tenant(self) -> str:
        """Whose it is."""
        return self.namespace.tenant

    @property
    def pages(self) -> int:
        """On all media; a page on two media counts twice."""
        return sum(medium.pages for medium in self.media)

    @property
    def bytes(self) -> int:
        """That these pages take."""
        return self.pages * self.namespace.page_bytes


@dataclass(frozen=True, slots=True)
class StoreRecord:
    """A store and its process (uuids of 16 bytes). `seen_s`: its last heartbeat; `alive`: its
    process is there; `mode`: the one in force there, None if it did not say."""

    store: bytes
    process: bytes
    medium_id: bytes
    medium: bytes
    epoch: int
    seen_s: int
    alive: bool
    host: str = ""
    server: str = ""
    rank: int = 0
    mode: str | None = None
    shared: bool = True

    @property
    def unattended(self) -> bool:
        """Whether no process ever used it since a tool made its pages known."""
        return self.server == TOOL


def id_of(tag: bytes) -> str:
    """18 hexadecimal digits for a hash tag with its braces."""
    return keys.tag_bytes(tag).hex()


def tag_of(digits: str) -> bytes:
    """The hash tag of such digits. Raises ValueError for anything else."""
    raw = bytes.fromhex(digits)
    if len(raw) != ID_BYTES or len(digits) != 2 * ID_BYTES:
        raise ValueError(f"the id of a namespace has {2 * ID_BYTES} hexadecimal digits")
    return keys.tag(raw)


def tags(cursor: bytes, count: int) -> Flow[tuple[bytes, list[bytes]]]:
    """Some tags of all, on the shard of the key `g`; the cursor b"0" begins, and ends."""
    after, found = yield from scan_set(keys.TAGS, cursor, count)
    return after, [tag for tag in found if keys.is_tag(tag)]


def scan_set(key: bytes, cursor: bytes, count: int) -> Flow[tuple[bytes, list[bytes]]]:
    """Some members of a set, and the cursor for the next; on the shard of that key."""
    reply = yield from answer(Call.of("scan_set", (key,), (cursor, b"%d" % count)))
    after, found = _list(reply, 2)
    return after, [member for member in found if isinstance(member, bytes)]


def describe(tag: bytes) -> Flow[NamespaceRecord | None]:
    """The namespace of a tag; None if there is none, or one that this version cannot read, which
    must not hide the others."""
    try:
        reply = yield from answer(
            Call.of("describe", tuple(family + tag for family in (b"n", b"s", b"x", b"y")), ())
        )
        raw = unpacked(reply)
        # Lua's empty table comes as a list
        return _namespace(tag, raw) if raw else None
    except (RegistryRefused, ValueError, TypeError, KeyError, OverflowError) as error:
        note(tag, f"{type(error).__name__}: {error}")
        return None


def members(tag: bytes) -> Flow[list[StoreRecord]]:
    """Its stores, at most `MAX_STORES`, in the order of their uuids."""
    found: dict[bytes, StoreRecord] = {}
    cursor = b"0"
    while len(found) < MAX_STORES:
        args = (tag, cursor, _STORES_A_STEP)
        reply = yield from answer(Call.of("members", (b"s" + tag, b"n" + tag), args))
        cursor, rows = _list(reply, 2)
        for row in rows:
            record = _store(row)
            if record is not None:
                found[record.store] = record
        if cursor == b"0":
            break
    return [found[store] for store in sorted(found)[:MAX_STORES]]


@lru_cache(1024)
def note(tag: bytes, complaint: str) -> None:
    """Log what is wrong with a namespace, once as long as it is the same."""
    _log.warning("the namespace %s cannot be read: %s", id_of(tag), complaint)


def unpacked(reply: Any) -> Any:
    """What a script packed. Raises RegistryRefused for anything else."""
    try:
        return msgpack.unpackb(reply, raw=True)
    except (ValueError, TypeError, msgpack.UnpackException) as error:
        raise RegistryRefused(f"a reply is malformed: {error}") from error


def _namespace(tag: bytes, raw: dict[bytes, Any]) -> NamespaceRecord:
    namespace = Namespace.decode(raw[b"encoding"])
    if keys.tag(namespace.fingerprint) != tag:
        raise ValueError("another namespace is kept there")
    return NamespaceRecord(
        tag,
        namespace,
        int(raw[b"epoch"] or 0),
        tuple(_medium(*row) for row in raw[b"media"]),
        int(raw[b"stores"]),
        int(raw.get(b"hits") or 0),
        int(raw.get(b"seen") or 0),
        text(raw.get(b"mode")),
        number(raw.get(b"ttl_ms")),
        text(raw.get(b"tenant_mode")),
        number(raw.get(b"tenant_ttl_ms")),
        int(raw.get(b"limited") or 0),
        int(raw.get(b"pins") or 0),
    )


def _medium(name: bytes, packed: Any, seen: Any, pages: Any) -> MediumRecord:
    record: Any = unpacked(packed) if packed else ()
    uuid = record[0] if len(record) > 0 and isinstance(record[0], bytes) else b""
    shared = bool(record[1]) if len(record) > 1 else True
    return MediumRecord(name, uuid, shared, int(seen or 0), max(0, int(pages or 0)))


def _store(row: Any) -> StoreRecord | None:
    """None for what no member has written."""
    try:
        store, packed, medium, process = row
        own: Any = unpacked(packed)
        about: Any = unpacked(medium) if medium else [b"", True]
        # a process that is gone is named by what its store's record says
        said: Any = unpacked(process) if process else [*own[4:7]]
        said = [*said, b"", b"", 0][:3] if len(said) < 3 else said
        return StoreRecord(
            store,
            own[0],
            own[1],
            about[0],
            int(own[2]),
            int(own[3]),
            alive=bool(process),
            host=text(said[0]) or "",
            server=text(said[1]) or "",
            rank=int(said[2]),
            mode=text(said[5]) if process and len(said) > 5 else None,
            shared=bool(about[1]),
        )
    except (RegistryRefused, ValueError, TypeError, IndexError):
        return None


def text(value: Any) -> str | None:
    """A field of words; None if there is none."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) and value else None


def number(value: Any) -> int | None:
    """A field of digits; None if there is none."""
    return int(value) if isinstance(value, bytes) and value.isdigit() else None


def _list(reply: Any, length: int) -> Sequence[Any]:
    found = unpacked(reply)
    if not isinstance(found, list) or len(found) != length:
        raise _malformed(reply)
    return found


def _malformed(reply: Any) -> RegistryRefused:
    return RegistryRefused(f"a reply is malformed: {reply!r:.60}")
