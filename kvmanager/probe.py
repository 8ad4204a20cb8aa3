"""A lookup by plain HGETs, one a page and medium: the server works half as long as for the script.

It suffices where every page from the start was used lately, so that no access time is due, and no
reason for a miss is wanted; else the script is asked the same and answers everything. What follows
the HGETs says whether the epoch and the numbers of buckets were those that the keys were made
with: numbers only grow, so they were the same all along. `csrc/probe.c` is its fast twin.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from hicache_backends import native_calls
from hicache_backends.errors import RegistryError
from hicache_backends.identity import DIGEST_BYTES
from kvmanager import keys, resp
from kvmanager.scripts import Script, script

_ENTRY_HEAD = 7
_MAX_ENTRY = 55
_ENTRY_MARK = 64
_READ = 64
_KNOWN_ROUTES = 64
UNIT_MS = 100
"""Access stamps count these."""
SKEW = 10
"""So far, in access stamps, may one's idea of the server's clock be behind."""
MAX_PROBED_MEDIA = 4
"""A probe asks for each page on each medium, the script only until the page is found."""

Parts = tuple[bytes, bytes, bytes, bytes, bytes, bytes]
"""Prefixes of the media's keys, equally long; numbers of buckets, 4 bytes each, little endian;
the commands behind the HGETs; their replies if all is as supposed; the script's call up to the
digests and behind them."""


@dataclass(frozen=True, slots=True)
class Route:
    """How the pages of some media are asked for."""

    parts: Parts
    buckets: tuple[int, ...]
    script: Script


class Routes:
    """The routes of one namespace, each with the numbers of buckets last seen, and whether they
    are worth taking.

    `clock_ahead`: the server's clock against the monotonic one, in access stamps; None: not known,
    so that the script is asked.
    """

    def __init__(self, tag: bytes, touch_interval: int) -> None:
        """`touch_interval`: of 100 ms, how often a page's access time is written."""
        self._tag = tag
        self.touch_interval = touch_interval
        self.patience = touch_interval + SKEW
        self.clock_ahead: int | None = None
        self._touching = False  # the last script wrote access times: a probe would not suffice
        self._known: dict[tuple[int, tuple[bytes, ...]], Route] = {}

    def now(self) -> int:
        """As `Probe.now`."""
        return (monotonic_units() + (self.clock_ahead or 0) + SKEW) & 0xFFFFFFFF

    def may_suffice(self, media: Sequence[bytes]) -> bool:
        """Whether a probe is likely to."""
        known = self.clock_ahead is not None and not self._touching
        return known and 0 < len(media) <= MAX_PROBED_MEDIA

    def scripted(self, head: bytes) -> None:
        """The script answered; `head` is that of the first page's entry, b"" if it found none."""
        if self.clock_ahead is not None:
            self._touching = bool(head) and not is_fresh(head, self.now(), self.patience)

    def probe(
        self, epoch: int, digests: Sequence[bytes], media: Sequence[bytes], *, why: bool
    ) -> Probe:
        """For digests on one medium at least."""
        reached = tuple(media)
        route = self.find(epoch, reached)
        return Probe(self, epoch, reached, list(digests), why, self.now(), route)

    def find(self, epoch: int, media: tuple[bytes, ...]) -> Route:
        """The route to media (uuids, nearest first)."""
        route = self._known.get((epoch, media))
        if route is None:
            route = self._learn(epoch, media, (None,) * len(media))
        return route

    def learn(self, epoch: int, media: tuple[bytes, ...], tail: bytes) -> None:
        """What the replies behind the HGETs say. What makes no sense is left to the script, and
        errors are met again by whoever asks next."""
        with suppress(RegistryError, ValueError):
            now, *told = map(resp.parse, resp.split(tail))
            if now == b"%d" % epoch:
                self._learn(epoch, media, tuple(told))

    def _learn(self, epoch: int, media: tuple[bytes, ...], told: tuple[resp.Reply, ...]) -> Route:
        ids = [keys.medium_id(medium) for medium in media]
        names, epoch_said = b"n" + self._tag, b"%d" % epoch
        fields = [b"epoch", *(b"f:%d.%b" % (epoch, medium) for medium in ids)]
        buckets = tuple(map(_buckets, told))
        values = [epoch_said, *(said if isinstance(said, bytes) else None for said in told)]
        found = script("lookup")
        before = (b"EVALSHA", found.sha, b"1", names, epoch_said, self._tag)
        behind = (b"".join(ids), b"1", b"%d" % self.touch_interval)
        route = Route(
            (
                b"".join(keys.page_prefix(self._tag, epoch, medium) for medium in ids),
                struct.pack(f"<{len(buckets)}I", *buckets),
                b"".join(resp.command(b"HGET", names, name) for name in fields),
                b"".join(map(resp.bulk, values)),
                b"*%d\r\n" % (len(before) + 1 + len(behind)) + b"".join(map(resp.bulk, before)),
                b"".join(map(resp.bulk, behind)),
            ),
            buckets,
            found,
        )
        if len(self._known) >= _KNOWN_ROUTES:
            self._known.clear()
        self._known[epoch, media] = route
        return route


@dataclass(slots=True)
class Probe:
    """One such lookup. `now`: the server's clock and SKEW. `why`: misses need reasons."""

    routes: Routes
    epoch: int
    media: tuple[bytes, ...]
    digests: list[bytes]
    why: bool
    now: int
    route: Route

    @property
    def script(self) -> Script:
        """What answers where the HGETs do not."""
        return self.route.script

    @property
    def request(self) -> Probe:
        """As `Call.request`: itself."""
        return self

    def learn(self, tail: bytes) -> None:
        """The replies behind the HGETs."""
        if tail != self.route.parts[3]:
            self.routes.learn(self.epoch, self.media, tail)

    def packed(self) -> bytes:
        """The HGETs and what follows them. Raises ValueError for what is no digest."""
        packed = native_calls.pages_request(self.route.parts, self.digests)
        return self.packed_by_python() if packed is None else packed

    def packed_by_python(self) -> bytes:
        """As `packed`."""
        if any(len(digest) != DIGEST_BYTES for digest in self.digests):
            raise ValueError(f"a digest has {DIGEST_BYTES} bytes")
        prefixes, _, tail, *_ = self.route.parts
        size = len(prefixes) // len(self.media)
        commands = [
            resp.command(
                b"HGET",
                prefixes[n * size : (n + 1) * size]
                + keys.bucket(digest, buckets).to_bytes(3, "little"),
                digest[1:],
            )
            for n, buckets in enumerate(self.route.buckets)
            for digest in self.digests
        ]
        return b"".join(commands) + tail

    @property
    def replies(self) -> int:
        """To what `packed` asks."""
        return len(self.media) * (len(self.digests) + 1) + 1

    def read(self, raw: bytes) -> tuple[list[bytes] | None, bytes]:
        """Locations of the pages found from the start, None if the script is to be asked; and the
        replies behind the HGETs."""
        found = native_calls.read_pages(
            self.route.parts,
            len(self.digests),
            raw,
            why=self.why,
            now=self.now,
            interval=self.routes.patience,
        )
        return self.read_by_python(raw) if found is None else found

    def read_by_python(self, raw: bytes) -> tuple[list[bytes] | None, bytes]:
        """As `read`."""
        values = resp.split(raw)
        asked = len(self.digests)
        pages, tail = values[: asked * len(self.media)], b"".join(values[asked * len(self.media) :])
        nearest: list[bytes] = []
        for row in range(asked):
            entries = map(_entry, pages[row::asked])
            entry = next((entry for entry in entries if entry), b"")
            if not entry:
                break
            nearest.append(entry)
        plain = all(page[:1] == b"$" for page in pages) and tail == self.route.parts[3]
        enough = len(nearest) == asked or not self.why
        if plain and enough and all(map(self._is_fresh, nearest)):
            return [entry[_ENTRY_HEAD:] for entry in nearest], tail
        return None, tail

    def script_request(self) -> bytes:
        """The script's call for the same."""
        *_, before, behind = self.route.parts
        return before + resp.bulk(b"".join(self.digests)) + behind

    def _is_fresh(self, entry: bytes) -> bool:
        return is_fresh(entry, self.now, self.routes.patience)


def monotonic_units() -> int:
    """This machine's monotonic clock in access stamps."""
    return time.monotonic_ns() // (UNIT_MS * 1_000_000)


def is_fresh(entry: bytes, now: int, patience: int) -> bool:
    """Whether a page was looked up so lately that no access time is due."""
    age = (now - int.from_bytes(entry[1:5], "big")) & 0xFFFFFFFF
    return age < patience and bool(entry[5] & _READ)


def _buckets(told: resp.Reply) -> int:
    """A number of buckets as `scripts/entry.lua` takes it. Raises ValueError for what is none."""
    if told is None:
        return keys.FIRST_BUCKETS
    if not isinstance(told, bytes) or not told.isdigit():
        raise ValueError("no number of buckets")
    return max(keys.MIN_BUCKETS, min(int(told), keys.MAX_BUCKETS))


def _entry(reply: bytes) -> bytes:
    """An entry's value; b"" where there is none."""
    value = reply[reply.find(b"\n") + 1 : -2]
    size = len(value)
    whole = _ENTRY_HEAD <= size <= _MAX_ENTRY and value[0] == size - _ENTRY_HEAD + _ENTRY_MARK
    return value if whole else b""
