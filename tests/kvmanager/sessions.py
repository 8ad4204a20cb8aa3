"""Sessions without threads, several of one process, on a server whose time can pass."""

from __future__ import annotations

import os
from typing import cast

import msgpack
import redis

from hicache_backends.errors import RegistryError
from hicache_backends.storage import ROOT, PageEntry
from kvmanager import keys, resp
from kvmanager.control.sweep import Sweep
from kvmanager.core import SessionCore
from kvmanager.flow import Flow
from kvmanager.model import Member
from kvmanager.options import RegistryOptions
from kvmanager.recovery import Recovery
from kvmanager.replies import Beat
from tests.kvmanager.members import NAMESPACE
from tests.kvmanager.reporters import Redis

TAG = keys.tag(NAMESPACE.fingerprint)
NAMES, STORES, SEQUENCES, ORDERS = (family + TAG for family in (b"n", b"s", b"q", b"o"))
LEASE = b"w" + TAG
OPTIONS = RegistryOptions(timeout_ms=5000, ttl_ms=60_000)


class Session:
    """One store of a process, and the pages that it keeps."""

    def __init__(self, carrier: Redis, process: bytes, medium: bytes, *, shared: bool) -> None:
        self._carrier = carrier
        self.member = Member(process, "host", "server", os.urandom(16), medium, shared)
        self.core = SessionCore(NAMESPACE, self.member, OPTIONS)
        self._recovery = Recovery(self.core, lambda: iter(list(self.pages.values())))
        self.pages: dict[bytes, PageEntry] = {}

    @property
    def medium_id(self) -> bytes:
        return self.core.wire.medium

    def beat(self) -> Beat:
        """Raises RegistryUnavailable where the medium is being dropped."""
        beat = self._carrier.run(self.core.beat())
        self.core.obeyed = beat.epoch
        self._carrier.run(plain(b"SADD", keys.TAGS, TAG))
        return beat

    def catch_up(self) -> None:
        """Tell the registry whatever it is known to lack."""
        while self._recovery.due:
            self._carrier.run(self._recovery.step())

    def join(self) -> None:
        """As a process does at its start."""
        self.beat()
        self.catch_up()

    def publish(self, count: int) -> None:
        """Keep some pages more; whether the registry takes them or not."""
        new = [PageEntry(os.urandom(16), ROOT, self.member.store + bytes(28)) for _ in range(count)]
        self.pages.update((entry.digest, entry) for entry in new)
        try:
            self._carrier.run(self.core.publish(new, b""))
        except RegistryError:
            self.core.lagging()

    def found(self) -> int:
        """How many of its pages others find."""
        asked = list(self.pages)
        flow = self.core.lookup(asked, [self.member.medium], prefix=False, why=False)
        return sum(map(bool, self._carrier.run(flow).locations)) if asked else 0


def plain(*words: bytes) -> Flow[resp.Reply]:
    reply: resp.Reply = yield resp.command(*words)
    return reply


def swept(carrier: Redis, sweep: Sweep | None = None) -> Sweep:
    """A pass, or the rest of it."""
    if sweep is None:
        carrier.run(plain(b"DEL", LEASE))
        sweep = Sweep(TAG)
    while carrier.run(sweep.step()):
        pass
    return sweep


def fields(client: redis.Redis, key: bytes) -> dict[bytes, bytes]:
    return cast("dict[bytes, bytes]", client.hgetall(key))


def pass_time(client: redis.Redis, seconds: int, *, looked: bool) -> None:
    """Every stamp is so much older, and what has a time to live is gone. `looked`: somebody swept
    meanwhile, so that the registry was there."""
    for name, value in fields(client, NAMES).items():
        if name in (b"seen", b"looked", b"back") or name.startswith(b"b:"):
            client.hset(NAMES, name, int(value) - seconds)
    for store, packed in fields(client, STORES).items():
        record = msgpack.unpackb(packed, raw=True)
        record[3] = int(record[3]) - seconds
        client.hset(STORES, store, msgpack.packb(record, use_bin_type=False))
    for process, order in fields(client, ORDERS).items():
        mode, given = order.split()
        client.hset(ORDERS, process, b"%b %d" % (mode, int(given) - seconds))
    for key in client.scan_iter(count=1000):
        if key[:1] in b"rw":
            client.delete(key)
    if looked and client.exists(NAMES):
        client.hset(NAMES, "looked", int(client.time()[0]))
