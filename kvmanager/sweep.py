"""Cleaning a namespace in small steps: dead claims, processes, media, epochs, pins and orders."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from typing import Any

from kvmanager import keys, leases
from kvmanager.flow import Flow
from kvmanager.leases import Lease, LeaseLost
from kvmanager.namespaces import unpacked
from kvmanager.resp import Reply

LEASE_MS = 30_000
"""Nobody else sweeps a namespace for so long after the last one did."""
PRIVATE_MS = 3_600_000
"""A medium that only one host reaches is forgotten this long after its last process was seen."""
SHARED_MS = 7 * 24 * 3_600_000
ORDER_MS = 3_600_000
"""A mode that was ordered of a process is forgotten this long after, where the process is gone."""
UNLINK_KEYS = 512

_Work = Generator[Flow[Any], Any, None]


class Sweep:
    """One pass over one namespace, by whoever has its lease. Each step is one short command of the
    server, two where the lease is to be renewed. `empty`: no store has a medium there any more."""

    def __init__(
        self,
        tag: bytes,
        holder: bytes,
        *,
        lease_ms: int = LEASE_MS,
        private_ms: int = PRIVATE_MS,
        shared_ms: int = SHARED_MS,
    ) -> None:
        """`holder`: 16 bytes of the process that sweeps."""
        self.counters = {"claims": 0, "stores": 0, "keys": 0, "pins": 0, "orders": 0}
        self.lease: Lease | None = None
        self.empty = False
        self._tag = tag
        self._holder = holder
        self._lease_ms = lease_ms
        self._renew_s = 0.0
        self._limits = (b"%d" % private_ms, b"%d" % shared_ms)
        self._work = self._pass()
        self._next: Flow[Any] = next(self._work)

    def step(self) -> Flow[bool]:
        """One step; whether there are more."""
        try:
            if self.lease is not None and time.monotonic() > self._renew_s:
                yield from self.lease.renew(self._lease_ms)
                self._leased()
            reply = yield from self._next
            self._next = self._work.send(reply)
        except StopIteration:
            return False
        except LeaseLost:
            self.lease, self.empty = None, False
            return False
        return True

    def _leased(self) -> None:
        self._renew_s = time.monotonic() + self._lease_ms / 3000

    def _pass(self) -> _Work:
        tag = self._tag
        self.lease = yield leases.take(leases.sweep_key(tag), self._holder, self._lease_ms)
        if self.lease is None:
            return
        self._leased()
        state = unpacked((yield self._act("sweep_media", (b"n" + tag,), self._limits)))
        if not state:
            return
        media, dropping = state[b"media"], state[b"dropping"]
        epoch = b"%d" % state[b"epoch"]
        for medium in _ids(media):
            claims = (b"c%b%b.%b" % (tag, epoch, medium),)
            yield from self._scan("sweep_claims", claims, (), "claims")
        stores = (b"s" + tag, b"q" + tag, b"n" + tag, b"x" + tag)
        yield from self._scan("sweep_stores", stores, self._limits, "stores", before=(tag,))
        yield from self._scan("sweep_pins", (b"y" + tag, b"n" + tag), (), "pins")
        orders = (tag, b"%d" % ORDER_MS)
        yield from self._scan("sweep_orders", (b"o" + tag,), orders, "orders")
        yield from self._families(epoch, dropping)
        yield self._act("sweep_dropped", (b"n" + tag,), (dropping, epoch))
        self.empty = not media

    def _act(self, name: str, own: Sequence[bytes], args: Sequence[bytes]) -> Flow[Reply]:
        if self.lease is None:
            raise LeaseLost
        return self.lease.act(name, own, args)

    def _scan(
        self,
        name: str,
        own: Sequence[bytes],
        args: Sequence[bytes],
        counter: str,
        before: Sequence[bytes] = (),
    ) -> _Work:
        cursor = b"0"
        while True:
            found = unpacked((yield self._act(name, own, (*before, cursor, *args))))
            self.counters[counter] += found[b"dropped"]
            cursor = found[b"cursor"]
            if cursor == b"0":
                return

    def _families(self, epoch: bytes, dropping: bytes) -> _Work:
        families: dict[bytes, int] = {}
        cursor = b"0"
        while True:
            call = self._act("sweep_families", (b"n" + self._tag,), (cursor, epoch, dropping))
            found = unpacked((yield call))
            families.update((family, buckets) for family, buckets in found[b"families"])
            cursor = found[b"cursor"]
            if cursor == b"0":
                break
        for family, buckets in families.items():
            yield from self._unlink(family, min(buckets, keys.MAX_BUCKETS))

    def _unlink(self, family: bytes, buckets: int) -> _Work:
        names = b"n" + self._tag
        epoch, _, medium = family.partition(b".")
        for start in range(0, buckets, UNLINK_KEYS):
            numbers = range(start, min(start + UNLINK_KEYS, buckets))
            pages = [keys.page_key(self._tag, int(epoch), medium, n) for n in numbers]
            self.counters["keys"] += yield self._act("sweep_keys", (names, *pages), (b"",))
        claims = b"c" + self._tag + family
        yield self._act("sweep_keys", (names, claims), (family,))


def _ids(joined: bytes) -> Sequence[bytes]:
    size = keys.MEDIUM_ID_BYTES
    return [joined[i : i + size] for i in range(0, len(joined), size)]
