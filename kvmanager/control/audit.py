"""What a check of the registry asks and mends beside its `Walk`: flows on one hash tag's shard.

Each is one short script or command. Those that change something say so; none takes an access for
the use of a page.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from hicache_backends.errors import RegistryRefused
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager import resp
from kvmanager.control.namespaces import unpacked
from kvmanager.flow import Flow, answer
from kvmanager.replies import read_done
from kvmanager.scripts import Call
from kvmanager.wire import joined, joined_locations

STEP_ITEMS = 512


class Part(NamedTuple):
    """A part of a key. `kind`: its type as Redis calls it; `ttl_ms` -1: no end, -2: no such key;
    `now_s`: by the server's clock; `after`: the cursor that goes on, b"0" at the end; `found`:
    members of a set, field, value, ... of a hash."""

    kind: str
    ttl_ms: int
    now_s: int
    after: bytes
    found: list[bytes]

    @property
    def pairs(self) -> Iterator[tuple[bytes, bytes]]:
        """Fields and values."""
        return zip(self.found[::2], self.found[1::2], strict=False)


class Place(NamedTuple):
    """The pages of one medium (its 8-letter id) of one namespace in one epoch."""

    tag: bytes
    epoch: int
    medium: bytes

    @property
    def arguments(self) -> tuple[bytes, bytes, bytes]:
        """As the scripts take them."""
        return b"%d" % self.epoch, self.tag, self.medium

    @property
    def family(self) -> bytes:
        """As fields of n{tag} and keys of claims end."""
        return b"%d.%b" % (self.epoch, self.medium)


def part(key: bytes, cursor: bytes = b"0") -> Flow[Part]:
    """A part of any hash or set, b"0" begins."""
    reply = yield from answer(Call.of("part", (key,), (cursor, b"%d" % STEP_ITEMS)))
    try:
        kind, ttl_ms, now_s, after, found = unpacked(reply)
        return Part(kind.decode(), int(ttl_ms), int(now_s), bytes(after), list(found))
    except (ValueError, TypeError, AttributeError) as error:
        raise RegistryRefused(f"a reply is malformed: {reply!r:.60}") from error


def seen(place: Place, digests: Sequence[bytes]) -> Flow[list[bytes]]:
    """The location of each page, b"" where it is nowhere; at most 1,024. Touches nothing."""
    args = (*place.arguments, joined(digests))
    reply = yield from answer(Call.of("seen", (b"n" + place.tag,), args))
    body, at, locations = read_done(reply), 0, []
    while at < len(body):
        size = body[at]
        locations.append(body[at + 1 : at + 1 + size])
        at += 1 + size
    if len(locations) != len(digests) or at != len(body):
        raise RegistryRefused(f"a reply is malformed: {reply!r:.60}")
    return locations


def discard(place: Place, pages: Sequence[tuple[bytes, bytes]]) -> Flow[int]:
    """Forget pages (digest, location), at most 1,024, if they are still there; how many were.
    Their owner is not told."""
    entries = [PageEntry(digest, UNKNOWN, location) for digest, location in pages]
    args = (*place.arguments, joined([digest for digest, _ in pages]), *joined_locations(entries))
    reply = yield from answer(Call.of("discard", (b"n" + place.tag,), args))
    return int(read_done(reply))


def report(place: Place, digest: bytes, location: bytes) -> Flow[bool]:
    """Forget a page if it is still there, and tell its owner; whether it was."""
    args = (b"%d" % place.epoch, place.tag, digest, UNKNOWN, location)
    return read_done((yield from answer(Call.of("report", (b"n" + place.tag,), args)))) == b"1"


def purge(place: Place, bucket: int) -> Flow[int]:
    """Take what is no entry out of a bucket; how much that was."""
    gone, cursor = 0, b"0"
    while True:
        args = (*place.arguments, b"%d" % bucket, cursor)
        reply = yield from answer(Call.of("purge", (b"n" + place.tag,), args))
        count, _, cursor = read_done(reply).partition(b" ")
        gone += int(count)
        if cursor == b"0":
            return gone


def ask(*command: bytes) -> Flow[resp.Reply]:
    """The reply to one command."""
    reply: resp.Reply = yield resp.command(*command)
    return reply
