"""A namespace of every size that is promised, written by the server itself in a few seconds."""

from __future__ import annotations

import os
import time
from typing import Any

import msgpack
import redis

from hicache_backends.segment.format import Location
from kvmanager import figures, keys, reports
from kvmanager.control import history
from kvmanager.control.history import Sample
from kvmanager.control.namespaces import MAX_STORES
from kvmanager.control.pins import MAX_PINS
from kvmanager.reports import Gauges, Hot, StoreGauges
from kvmanager.wire import Wire

PAGES, BUCKETS, MEDIA = 1_000_000, 65_536, 1024
CLAIMS, CLAIMED_MEDIA = 2000, 32
EVENTS, EVENT_PAGES = 1024, 1024
_PAGES = """
local head, tail = ARGV[4], string.rep('\\0', 9)
for bucket = ARGV[1], ARGV[2] - 1 do
  local fields = {}
  for page = bucket, ARGV[3] - 1, 65536 do
    local a, b, c = page % 256, math.floor(page / 256) % 256, math.floor(page / 65536)
    fields[#fields + 1] = string.char(b, c, a, b, c, 0) .. tail
    fields[#fields + 1] = head
  end
  local low = string.char(bucket % 256, math.floor(bucket / 256), 0)
  redis.call('HSET', KEYS[1] .. low, unpack(fields))
end
"""


def digest(page: int) -> bytes:
    """Of one of `PAGES` pages, or of one beyond them, which is not there."""
    return page.to_bytes(3, "little") + page.to_bytes(13, "little")


def packed(record: list[object]) -> bytes:
    made: bytes = msgpack.packb(record, use_bin_type=False)
    return made


class Filler:
    """Writes what processes would have written, around one that has joined (`wire`)."""

    def __init__(self, client: redis.Redis, wire: Wire, store: bytes, tenant: bytes) -> None:
        self._client = client
        self._tag = wire.tag
        self._medium = wire.medium
        self._store = store
        self._tenant = tenant
        self._names = b"n" + wire.tag
        self._now_s = int(time.time())

    def fill(self) -> None:
        for step in (self._pages, self._media, self._stores, self._claims, self._rest):
            step()

    def _pages(self) -> None:
        prefix = keys.page_prefix(self._tag, 0, self._medium)
        head = bytes([108, 0, 0, 0, 0, 0, 0]) + Location(self._store, 0, 1, 4096, 1, 7).pack()
        load = self._client.register_script(_PAGES)
        for first in range(0, BUCKETS, 4096):
            load([prefix], [first, first + 4096, PAGES, head])
        counts: dict[Any, Any] = {b"f:0." + self._medium: BUCKETS, b"k:0." + self._medium: PAGES}
        self._client.hset(self._names, mapping=counts)

    def _media(self) -> None:
        self.media = [self._medium, *(keys.medium_id(os.urandom(16)) for _ in range(MEDIA - 1))]
        dropping = [keys.medium_id(os.urandom(16)) for _ in range(MEDIA)]
        facts: dict[Any, Any] = {b"media": b"".join(self.media)}
        for medium in (*self.media[1:], *dropping):
            facts |= {b"m:" + medium: packed([os.urandom(16), True]), b"b:" + medium: self._now_s}
            facts |= {b"f:0." + medium: 256, b"k:0." + medium: 1}
        self._client.hset(self._names, mapping={**facts, b"dropping": b"".join(dropping)})

    def _stores(self) -> None:
        pipe = self._client.pipeline(transaction=False)
        self.processes = [os.urandom(16) for _ in range(MAX_STORES - 1)]
        for n, process in enumerate(self.processes):
            store, medium = (
                os.urandom(16),
                self.media[n % MEDIA // 2],
            )  # the other half has none left
            record = [process, medium, 0, self._now_s, "host", "server", n % 8]
            about = ["host", "server", n % 8, store, medium, ""]
            hot = tuple(Hot(os.urandom(16), 3, 7) for _ in range(reports.MAX_HOT))
            gauges = Gauges(hot=hot, stores=(StoreGauges(store, 10, 40_960, 1 << 30),))
            pipe.hset(b"s" + self._tag, store, packed(record))
            pipe.hset(b"q" + self._tag, store, 1)
            pipe.hset(b"x" + self._tag, store, 1 << 40)
            pipe.hset(b"o" + self._tag, process, f"read {self._now_s}")
            pipe.set(b"r" + self._tag + process, packed(about), px=600_000)
            pipe.set(b"i" + self._tag + process, reports.packed(1, gauges), px=600_000)
        pipe.execute()

    def _claims(self) -> None:
        claim = b"claimant" + b"%d" % ((self._now_s + 600) * 1000)
        for medium in self.media[:CLAIMED_MEDIA]:
            claims: dict[Any, Any] = {digest(PAGES + 100_000 + n): claim for n in range(CLAIMS)}
            self._client.hset(b"c%b0.%b" % (self._tag, medium), mapping=claims)

    def _rest(self) -> None:
        pins: dict[Any, Any] = {digest(n): self._now_s + 3600 for n in range(MAX_PINS)}
        self._client.hset(b"y" + self._tag, mapping=pins)
        self._client.hset(
            self._names, mapping={"pins": MAX_PINS, "events_until": self._now_s + 100}
        )
        self._client.hset(b"t" + self._tag, mapping=dict.fromkeys(figures.names(), 1 << 40))
        pipe = self._client.pipeline(transaction=False)
        joined = os.urandom(16 * EVENT_PAGES)
        for _ in range(EVENTS):
            event: dict[Any, Any] = {"kind": "removed", "medium": self._medium, "digests": joined}
            pipe.xadd(b"e" + self._tag, event)
        sample = history.packed(Sample(0.0, dict.fromkeys(sorted(figures.names())[:1500], 7)))
        for key in history.keys_of(self._tenant):
            for n in range(360):
                pipe.xadd(key, {"s": sample}, id=f"{(self._now_s - 3600 + 10 * n) * 1000}-1")
        pipe.execute()
