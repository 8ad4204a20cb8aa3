"""What the replies of the registry's scripts say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgpack

from hicache_backends.errors import RegistryRefused, RegistryUnavailable, StaleEpoch
from hicache_backends.outcomes import Reason
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager.model import Claim, Lookup, Published, Removal
from kvmanager.resp import Reply

_Word = TypeVar("_Word")

_MAX_NUMBER = 20
_ENTRY_HEAD = 7
_ENTRY_MARK = 64
_WHY = {129: Reason.BEING_WRITTEN, 130: Reason.OTHER_HOST}
_PUBLISHED = (Published.OK, Published.DUPLICATE)
_REMOVAL = (Removal.REMOVED, Removal.TOUCHED, Removal.PARENT)
_CLAIM = (Claim.GRANTED, Claim.STORED, Claim.ELSEWHERE)


class EpochMoved(StaleEpoch):
    """The namespace was cleared; `epoch` is the present one."""

    def __init__(self, epoch: int) -> None:
        super().__init__(f"the namespace was cleared, its epoch is {epoch} now")
        self.epoch = epoch


class Garbled(RegistryRefused):
    """No reply that the registry's scripts give."""


class Forgotten(RegistryUnavailable):
    """The registry does not know this namespace: it was flushed, or is another one."""


@dataclass(frozen=True, slots=True)
class Mutation:
    """The reply to a publish or remove. `last`: the store's sequence that the registry has now
    (-1: none); `applied`: it was carried out, with one result a key."""

    last: int
    applied: bool
    results: bytes


@dataclass(frozen=True, slots=True)
class Beat:
    """The reply to a heartbeat; the fields are those of `scripts/beat.lua`."""

    epoch: int
    sequence: int
    clear: bool
    returned: bool
    bad: tuple[PageEntry, ...]
    mode: str | None
    now: int
    limit_bytes: int | None = None
    ttl_ms: int | None = None


def read_lookup(reply: Reply | list[bytes], keys_asked: int, absent: Reason) -> Lookup:
    """`absent`: the reason of a page that is nowhere. `reply`: the script's, or the locations of
    the pages found from the start."""
    if isinstance(reply, list):
        gap = keys_asked - len(reply)
        reasons: list[Reason | None] = [None] * len(reply)
        return Lookup(reply + [b""] * gap, reasons + [absent] * gap)
    body = _body(reply)
    locations = _equal_locations(body)
    reasons = [None] * len(locations)
    at = sum(map(len, locations)) + _ENTRY_HEAD * len(locations)
    while at < len(body):
        mark = body[at]
        size = _ENTRY_HEAD + mark - _ENTRY_MARK if mark < 128 else 1
        if mark < _ENTRY_MARK or at + size > len(body):
            raise _garbled(reply)
        found = mark < 128
        locations.append(body[at + _ENTRY_HEAD : at + size] if found else b"")
        reasons.append(None if found else _WHY.get(mark, absent))
        at += size
    short = keys_asked - len(locations)
    if short < 0 or (short and (not reasons or reasons[-1] is None)):
        raise _garbled(reply)
    return Lookup(locations + [b""] * short, reasons + reasons[-1:] * short)


def counted(reply: Reply | list[bytes]) -> bool:
    """Whether the registry counted the pages that a lookup found: its script does."""
    return not isinstance(reply, list)


def first_found(reply: Reply) -> bytes:
    """The head of the first page's entry; b"" unless a lookup's script found it."""
    head = reply[1 : 1 + _ENTRY_HEAD] if isinstance(reply, bytes) else b""
    return head if len(head) == _ENTRY_HEAD and _ENTRY_MARK <= head[0] < 128 else b""


def read_claims(reply: Reply, keys_asked: int) -> list[Claim]:
    """One answer a key."""
    return claims(_body(reply), keys_asked)


def claims(results: bytes, keys_asked: int) -> list[Claim]:
    """What a claim's results say."""
    return _each(_CLAIM, results, keys_asked)


def read_done(reply: Reply) -> bytes:
    """What an abort or report says beyond being done."""
    return _body(reply)


def read_epoch(reply: Reply) -> int:
    """What a clear raised the epoch to."""
    said = _body(reply)
    if not said.isdigit() or len(said) >= _MAX_NUMBER:
        raise _garbled(reply)
    return int(said)


def read_mutation(reply: Reply, sequence: int) -> Mutation:
    """`sequence`: the one that was sent."""
    if isinstance(reply, bytes) and reply[:1] in (b"G", b"A"):
        try:
            return Mutation(int(reply[1:17]), reply[:1] == b"G", reply[17:])
        except ValueError:
            raise _garbled(reply) from None
    return Mutation(sequence, True, _body(reply))


def published(results: bytes, entries: int) -> list[Published]:
    """What a publish's results say."""
    return _each(_PUBLISHED, results, entries)


def removals(results: bytes, entries: int) -> list[Removal]:
    """What a remove's results say."""
    return _each(_REMOVAL, results, entries)


def read_beat(reply: Reply) -> Beat:
    """Raises RegistryRefused if the registry keeps another namespace or schema here."""
    try:
        raw = msgpack.unpackb(reply, raw=True)
        if b"refused" in raw:
            raise RegistryRefused(raw[b"refused"].decode())
        if b"busy" in raw:
            raise RegistryUnavailable(raw[b"busy"].decode())
        mode = raw.get(b"mode")
        return Beat(
            int(raw[b"epoch"]),
            int(raw[b"sequence"]),
            bool(raw[b"clear"]),
            bool(raw[b"returned"]),
            tuple(PageEntry(r[:16], UNKNOWN, r[16:]) for r in raw[b"bad"]),
            mode.decode() if mode else None,
            int(raw[b"now"]),
            _optional(raw.get(b"limit_bytes")),
            _optional(raw.get(b"ttl_ms")),
        )
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError) as error:
        raise Garbled(f"a heartbeat's reply is malformed: {error}") from error


def _optional(value: int | None) -> int | None:
    return None if value is None else int(value)


def _equal_locations(body: bytes) -> list[bytes]:
    """The entries at the start of a reply, if they are all as long as the first; else none."""
    if not body or not _ENTRY_MARK <= body[0] < 128:
        return []
    step = _ENTRY_HEAD + body[0] - _ENTRY_MARK
    whole = len(body) // step * step
    if body[:whole:step] != body[:1] * (whole // step):
        return []
    return [body[i : i + step - _ENTRY_HEAD] for i in range(_ENTRY_HEAD, whole, step)]


def _body(reply: Reply) -> bytes:
    if not isinstance(reply, bytes):
        raise _garbled(reply)
    if reply[:1] == b"K":
        return reply[1:]
    if reply == b"L":
        raise Forgotten("the registry does not know this namespace, until a process joins it")
    if reply[:1] == b"S" and reply[1:].isdigit() and len(reply) <= _MAX_NUMBER:
        raise EpochMoved(int(reply[1:]))
    raise _garbled(reply)


def _garbled(reply: Reply) -> Garbled:
    return Garbled(f"a reply is malformed: {reply!r:.60}")


def _each(words: Sequence[_Word], results: bytes, expected: int) -> list[_Word]:
    if len(results) != expected or (results and max(results) >= len(words)):
        raise _garbled(results)
    return [words[result] for result in results]
