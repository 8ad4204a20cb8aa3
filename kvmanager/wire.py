"""The registry's calls as bytes: how each is asked, and by what its reply is read. Does no I/O."""

from __future__ import annotations

from collections.abc import Sequence

import msgpack
import numpy as np

from hicache_backends.identity import DIGEST_BYTES, Namespace
from hicache_backends.storage import PageEntry
from kvmanager import keys, replies, reports, resp
from kvmanager.model import MAX_LOCATION_BYTES, Member
from kvmanager.probe import UNIT_MS
from kvmanager.scripts import Call

PARENT_AGE_MS = 24 * 3600 * 1000
"""A page without any use for this long is no longer kept for its children's sake."""
_LITTLE_ROOT = 1 << 56  # second half of ROOT as a little-endian integer


class Wire:
    """The calls of one member within one namespace. `direct`: they reach Redis itself."""

    direct = True
    first_found = staticmethod(replies.first_found)
    counted = staticmethod(replies.counted)
    read_lookup = staticmethod(replies.read_lookup)
    read_claims = staticmethod(replies.read_claims)
    read_done = staticmethod(replies.read_done)
    read_epoch = staticmethod(replies.read_epoch)
    read_mutation = staticmethod(replies.read_mutation)
    read_beat = staticmethod(replies.read_beat)

    def __init__(self, namespace: Namespace, member: Member) -> None:
        self._fingerprint = namespace.fingerprint
        self._encoding = namespace.encode()
        self._member = member
        self.tag = keys.tag(self._fingerprint)
        self.medium = keys.medium_id(member.medium)
        self._names = b"n" + self.tag
        self._sequences = b"q" + self.tag
        self._alive = b"r" + self.tag + member.process

    def lookup(
        self,
        epoch: int,
        digests: Sequence[bytes],
        media: Sequence[bytes],
        prefix: bool,
        touch_interval: int,
        why: bool = True,
    ) -> Call:
        """`touch_interval`: in access stamps. `why`: misses need reasons, which the script gives
        in any case."""
        return Call.of(
            "lookup",
            (self._names,),
            (
                b"%d" % epoch,
                self.tag,
                joined(digests),
                b"".join(map(keys.medium_id, media)),
                b"1" if prefix else b"0",
                b"%d" % touch_interval,
            ),
        )

    def claim(self, epoch: int, digests: Sequence[bytes], token: bytes, ttl_ms: int) -> Call:
        args = (b"%d" % epoch, self.tag, joined(digests), self.medium, token, b"%d" % ttl_ms)
        return Call.of("claim", (self._names,), args)

    def abort(self, epoch: int, digests: Sequence[bytes], token: bytes) -> Call:
        key = b"c%b%d.%b" % (self.tag, epoch, self.medium)
        return Call.of("abort", (key,), (joined(digests), token))

    def publish(
        self, epoch: int, sequence: int, entries: Sequence[PageEntry], *, claimed: bool
    ) -> Call:
        digests = joined([entry.digest for entry in entries])
        links, parents = _links(digests, joined([entry.parent for entry in entries]))
        lengths, locations = joined_locations(entries)
        return self._mutation(
            "publish",
            epoch,
            sequence,
            (digests, links, parents, lengths, locations, b"1" if claimed else b"0"),
        )

    def remove(
        self,
        epoch: int,
        sequence: int,
        entries: Sequence[PageEntry],
        touched_ms: Sequence[int] | None,
    ) -> Call:
        idle = b""
        if touched_ms is not None:
            units = np.asarray(touched_ms, np.float64) / UNIT_MS
            idle = np.clip(units, 0, 0xFFFFFFFF).astype(">u4").tobytes()
        lengths, locations = joined_locations(entries)
        digests = joined([entry.digest for entry in entries])
        parents = joined([entry.parent for entry in entries])
        age = b"%d" % (PARENT_AGE_MS // UNIT_MS)
        return self._mutation(
            "remove", epoch, sequence, (digests, parents, lengths, locations, idle, age)
        )

    def report(self, epoch: int, digest: bytes, location: bytes, parent: bytes) -> Call:
        args = (b"%d" % epoch, self.tag, digest, parent, location)
        return Call.of("report", (self._names,), args)

    def beat(
        self,
        obeyed_epoch: int,
        ttl_ms: int,
        hits: int = 0,
        begin: int | None = None,
        mode: str = "",
    ) -> Call:
        """`hits`: pages that probes found since the last one. `begin`: the sequence to begin anew
        from, if the store is about to announce its pages. `mode`: the one in force by order."""
        me = self._member
        process = _packed([me.host, me.server, me.rank, me.store, self.medium, mode])
        args = (
            self._fingerprint,
            self._encoding,
            b"%d" % keys.SCHEMA,
            b"%d" % obeyed_epoch,
            self.medium,
            _packed([me.medium, me.shared]),
            me.store,
            me.process,
            process,
            b"%d" % ttl_ms,
            b"" if begin is None else b"%d" % begin,
            b"%d" % hits,
        )
        owned = (b"s" + self.tag, self._alive, b"b" + self.tag + me.store)
        orders = (b"o" + self.tag, b"x" + self.tag)
        return Call.of("beat", (self._names, self._sequences, *owned, *orders), args)

    def figures(self, report: reports.Report) -> Call:
        """What the process has counted, and how it is."""
        counters = (part for n in report.counters.items() for part in (n[0].encode(), b"%d" % n[1]))
        record = reports.packed(report.number, report.gauges)
        head = (b"%d" % report.number, record, b"%d" % reports.RECORD_TTL_MS)
        owned = (self._names, b"t" + self.tag, b"i" + self.tag + self._member.process)
        return Call.of("figures", owned, (*head, *counters))

    def clear(self) -> Call:
        return Call.of("clear", (self._names,), ())

    def enlist(self) -> bytes:
        """The command that adds the namespace to the list of all."""
        return resp.command(b"SADD", keys.TAGS, self.tag)

    def leave(self) -> Call:
        """Take the process's record away."""
        owned = (self._names, b"s" + self.tag, self._alive)
        return Call.of("leave", owned, (self._member.process, self._member.store))

    def _mutation(self, name: str, epoch: int, sequence: int, args: tuple[bytes, ...]) -> Call:
        head = (b"%d" % epoch, self.tag, self.medium, self._member.store, b"%d" % sequence)
        return Call.of(name, (self._names, self._sequences), head + args)


def _packed(record: list[object]) -> bytes:
    """As the scripts' msgpack reads it: theirs knows no binary type."""
    packed: bytes = msgpack.packb(record, use_bin_type=False)
    return packed


def joined(digests: Sequence[bytes]) -> bytes:
    """One after another. Raises ValueError for what is no digest."""
    joined = b"".join(digests)
    if len(joined) != DIGEST_BYTES * len(digests):
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes")
    return joined


def joined_locations(entries: Sequence[PageEntry]) -> tuple[bytes, bytes]:
    """Their lengths, a byte each, and themselves. Raises ValueError for what is no location."""
    locations = [entry.location for entry in entries]
    sizes = [len(location) for location in locations]
    if sizes and not 1 <= min(sizes) <= max(sizes) <= MAX_LOCATION_BYTES:
        raise ValueError(f"a location has 1 to {MAX_LOCATION_BYTES} bytes")
    return bytes(sizes), b"".join(locations)


def _links(digests: bytes, parents: bytes) -> tuple[bytes, bytes]:
    """For each page: 0 no parent known, 1 the page before it, 2 the next of the second value."""
    own = np.frombuffer(digests, "<u8").reshape(-1, 2)
    above = np.frombuffer(parents, "<u8").reshape(-1, 2)
    links = np.full(len(own), 2, np.uint8)
    links[(above[:, 0] == 0) & ((above[:, 1] == 0) | (above[:, 1] == _LITTLE_ROOT))] = 0
    links[1:][(above[1:] == own[:-1]).all(axis=1)] = 1
    return links.tobytes(), above[links == 2].tobytes()
