"""Cleaning a namespace in small steps: dead claims, processes, media and epochs."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import msgpack

from hicache_backends.errors import RegistryRefused
from kvmanager import keys
from kvmanager.flow import Flow
from kvmanager.resp import NoScript, Reply, command
from kvmanager.scripts import Call

LOCK_MS = 30_000
"""A namespace is swept at most once in this time, by whoever comes first."""
PRIVATE_MS = 3_600_000
"""A medium that only one host reaches is forgotten this long after its last process was seen."""
SHARED_MS = 7 * 24 * 3_600_000
UNLINK_KEYS = 512

_Work = Generator[Call | bytes, Reply, None]


class Sweep:
    """One pass over one namespace. Each step is one short command of the server."""

    def __init__(
        self,
        tag: bytes,
        process: bytes,
        *,
        lock_ms: int = LOCK_MS,
        private_ms: int = PRIVATE_MS,
        shared_ms: int = SHARED_MS,
    ) -> None:
        self.counters = {"claims": 0, "stores": 0, "keys": 0}
        self._tag = tag
        self._process = process
        self._lock_ms = lock_ms
        self._limits = (b"%d" % private_ms, b"%d" % shared_ms)
        self._work = self._pass()
        self._next: Call | bytes = next(self._work)

    def step(self) -> Flow[bool]:
        """One step; whether there are more."""
        if isinstance(self._next, bytes):
            reply = yield self._next
        else:
            try:
                reply = yield self._next.request
            except NoScript:
                yield self._next.script.load()
                reply = yield self._next.request
        try:
            self._next = self._work.send(reply)
        except StopIteration:
            return False
        return True

    def _pass(self) -> _Work:
        lock = (b"SET", b"w" + self._tag, self._process, b"NX", b"PX", b"%d" % self._lock_ms)
        if (yield command(*lock)) is None:
            return
        names = b"n" + self._tag
        call = Call.of("sweep_media", (names,), self._limits)
        state = _unpacked((yield call))
        if not state:
            return
        epoch, purged = int(state[b"epoch"]), int(state[b"purged"])
        media, dropping = _ids(state[b"media"]), _ids(state[b"dropping"])
        for medium in media:
            yield from self._claims(b"c%b%d.%b" % (self._tag, epoch, medium))
        yield from self._stores()
        for family, buckets in state[b"buckets"]:
            yield from self._unlink(family, buckets)
        for medium in dropping:
            yield Call.of("sweep_dropped", (names,), (medium,))
        if purged < epoch:
            yield command(b"HSET", names, b"purged", b"%d" % epoch)

    def _claims(self, key: bytes) -> _Work:
        cursor = b"0"
        while True:
            found = _unpacked((yield Call.of("sweep_claims", (key,), (cursor,))))
            self.counters["claims"] += found[b"dropped"]
            cursor = found[b"cursor"]
            if cursor == b"0":
                return

    def _stores(self) -> _Work:
        cursor = b"0"
        own = (b"s" + self._tag, b"q" + self._tag, b"n" + self._tag)
        while True:
            args = (self._tag, cursor, *self._limits)
            found = _unpacked((yield Call.of("sweep_stores", own, args)))
            self.counters["stores"] += found[b"dropped"]
            cursor = found[b"cursor"]
            if cursor == b"0":
                return

    def _unlink(self, family: bytes, buckets: int) -> _Work:
        epoch, _, medium = family.partition(b".")
        for start in range(0, buckets, UNLINK_KEYS):
            numbers = range(start, min(start + UNLINK_KEYS, buckets))
            pages = [keys.page_key(self._tag, int(epoch), medium, n) for n in numbers]
            unlinked = yield command(b"UNLINK", *pages)
            self.counters["keys"] += unlinked if isinstance(unlinked, int) else 0
        yield command(b"UNLINK", b"c" + self._tag + family)
        yield command(b"HDEL", b"n" + self._tag, b"f:" + family, b"k:" + family)


def _ids(joined: bytes) -> Sequence[bytes]:
    size = keys.MEDIUM_ID_BYTES
    return [joined[i : i + size] for i in range(0, len(joined), size)]


def _unpacked(reply: Reply) -> dict[bytes, Any]:
    try:
        found = msgpack.unpackb(reply, raw=True)
    except (ValueError, TypeError) as error:
        raise RegistryRefused(f"a sweep's reply is malformed: {error}") from error
    return found if isinstance(found, dict) else {}
