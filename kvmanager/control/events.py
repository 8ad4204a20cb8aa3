"""What happens in a namespace, told to those who listen: a Redis stream, and how to keep up.

While somebody listens, the scripts that change something append what they did to e{tag}. Every call
of `listen` keeps that up for `LEASE_S`; when nobody has called for longer, the next change ends it.
An event's id is its sequence. Who has heard everything up to an event that is still in the stream
has missed nothing; the stream is begun anew where something was not told, and trimmed to some
16,384 events or 16 MiB, so that a listener whose last event is gone is told so (`lost`) and takes a
snapshot.

A snapshot is a walk over the pages (`walk`) that begins after a position in the stream; the events
from that position on, applied to what the walk has met, make it exact: the last of a page's events
says whether it is there, and a page without one was met as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hicache_backends.errors import RegistryRefused
from hicache_backends.identity import DIGEST_BYTES
from kvmanager.control.namespaces import unpacked
from kvmanager.flow import Flow, answer
from kvmanager.scripts import Call

LEASE_S = 60
MAX_EVENTS = 64
"""Of one call."""
_KINDS = ("begin", "added", "removed", "cleared", "joined", "lost", "forgotten")
_SEQUENCE = re.compile(r"(\d{1,20})-(\d{1,20})", re.ASCII)
_MAX_PART = 1 << 64


@dataclass(frozen=True, slots=True)
class Event:
    """One thing that happened. `id`: its sequence; `medium`: the 8-letter id of one.

    begin      everything from here on is told
    added      pages (`digests`) were published on `medium` by `store`
    removed    pages are no longer there; `reported`: since a reader found one wrong or missing
    cleared    every page of before is void; the epoch is `epoch` now
    joined     `process` of `server` on `host` has a `store` on `medium`, whose uuid is `uuid`
    lost       that process is gone; what it stored may still be there. `why`: left, if it said so
    forgotten  nobody was seen on `medium` for long, and its pages are no longer kept
    """

    id: str
    kind: str
    medium: bytes = b""
    store: bytes = b""
    process: bytes = b""
    digests: tuple[bytes, ...] = ()
    epoch: int | None = None
    reported: bool = False
    uuid: bytes = b""
    host: str = ""
    server: str = ""
    rank: int = 0
    why: str = ""


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer to a listener. `last`: the newest event of all; `lost`: the one that the listener
    named is not there any more, so that it may have missed some; `more`: ask again at once."""

    epoch: int
    last: str
    lost: bool
    more: bool
    events: tuple[Event, ...]


def listen(tag: bytes, after: str = "", most: int = MAX_EVENTS) -> Flow[Heard | None]:
    """What happened after the event `after` ("": what happens from now on); None if there is no
    such namespace. Call it again within `LEASE_S`. Raises RegistryRefused."""
    args = (after.encode(), b"%d" % most, b"%d" % LEASE_S)
    raw = unpacked((yield from answer(Call.of("events", (b"n" + tag, b"e" + tag), args))))
    if not raw:
        return None
    try:
        return Heard(
            int(raw[b"epoch"]),
            raw[b"last"].decode(),
            bool(raw[b"lost"]),
            bool(raw[b"more"]),
            tuple(_event(*row) for row in raw[b"events"] or ()),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RegistryRefused(f"an event is malformed: {error!r}") from error


def is_sequence(text: str) -> bool:
    """Whether an event could have that id."""
    found = _SEQUENCE.fullmatch(text)
    return found is not None and all(int(part) < _MAX_PART for part in found.groups())


def order(sequence: str) -> tuple[int, int]:
    """By which ids are compared. Raises ValueError for what is none."""
    before, _, after = sequence.partition("-")
    return int(before), int(after)


def _event(sequence: bytes, flat: list[bytes]) -> Event:
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    kind = fields[b"kind"].decode()
    if kind not in _KINDS:
        kind = "begin"  # of a later version: nobody can apply it, so everything is read anew
    return Event(
        sequence.decode(),
        kind,
        fields.get(b"medium", b""),
        fields.get(b"store", b""),
        fields.get(b"process", b""),
        _digests(fields.get(b"digests", b"")),
        _number(fields, b"epoch"),
        b"reported" in fields,
        fields.get(b"uuid", b""),
        fields.get(b"host", b"").decode("utf-8", "replace"),
        fields.get(b"server", b"").decode("utf-8", "replace"),
        _number(fields, b"rank") or 0,
        fields.get(b"why", b"").decode("utf-8", "replace"),
    )


def _digests(joined: bytes) -> tuple[bytes, ...]:
    if len(joined) % DIGEST_BYTES:
        raise ValueError("a part of a digest")
    return tuple(joined[i : i + DIGEST_BYTES] for i in range(0, len(joined), DIGEST_BYTES))


def _number(fields: Mapping[bytes, Any], name: bytes) -> int | None:
    return int(fields[name]) if name in fields else None
