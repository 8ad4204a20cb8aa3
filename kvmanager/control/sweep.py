"""Cleaning a namespace in small steps: dead claims, processes, media, epochs, pins and orders."""

from __future__ import annotations

import os
import time
from collections.abc import Generator, Sequence
from typing import Any, TypeVar

from kvmanager import keys
from kvmanager.control import leases
from kvmanager.control.leases import HOLDER_BYTES, Lease, LeaseLost
from kvmanager.control.namespaces import unpacked
from kvmanager.flow import Flow
from kvmanager.resp import Reply

LEASE_MS = 30_000
"""Nobody else sweeps a namespace for so long after the last one did."""
PRIVATE_MS = 3_600_000
"""A medium that only one host reaches is forgotten this long after its last process was seen."""
SHARED_MS = 7 * 24 * 3_600_000
ORDER_MS = 3_600_000
"""A mode that was ordered of a process is forgotten this long after the process was seen."""
AWAY_MS = 1_800_000
"""After so long without a sweep, and three times as long as a lease, the registry counts as having
been away."""
UNLINK_KEYS = 512
MEDIA_A_STEP = 128

T = TypeVar("T")
_Work = Generator[Flow[Any], Any, T]


class Sweep:
    """One pass over one namespace, by whoever has its lease. Each step is one short command of the
    server, two where the lease is to be renewed. `empty`: no store has a medium there any more.

    Nothing of a living process is swept. A store goes when its process is gone and absent for long;
    a medium when no store is left there; and pages when their medium is on the list of those that
    are dropped, where no process can join and none can publish.
    """

    def __init__(
        self,
        tag: bytes,
        *,
        lease_ms: int = LEASE_MS,
        private_ms: int = PRIVATE_MS,
        shared_ms: int = SHARED_MS,
    ) -> None:
        self.counters = {"claims": 0, "stores": 0, "keys": 0, "pins": 0, "orders": 0}
        self.lease: Lease | None = None
        self.empty = False
        self._over = False
        self._tag = tag
        self._lease_ms = lease_ms
        self._renew_s = 0.0
        self._limits = (b"%d" % private_ms, b"%d" % shared_ms)
        self._work = self._pass()
        self._next: Flow[Any] = next(self._work)

    def step(self) -> Flow[bool]:
        """One step; whether there are more."""
        if self._over:
            return False
        try:
            if self.lease is not None and time.monotonic() > self._renew_s:
                yield from self.lease.renew(self._lease_ms)
                self._leased()
            reply = yield from self._next
            self._next = self._work.send(reply)
        except StopIteration:
            self._over = True
        except LeaseLost:
            self.lease, self.empty, self._over = None, False, True
        return not self._over

    def _leased(self) -> None:
        self._renew_s = time.monotonic() + self._lease_ms / 3000

    def _pass(self) -> _Work[None]:
        tag, holder = self._tag, os.urandom(HOLDER_BYTES)  # a process may have several sessions
        self.lease = yield leases.take(leases.sweep_key(tag), holder, self._lease_ms)
        if self.lease is None:
            return
        self._leased()
        names, away_ms = b"n" + tag, max(AWAY_MS, 3 * self._lease_ms)
        state = unpacked((yield self._act("sweep_begin", (names,), (b"%d" % away_ms,))))
        self.empty = not state or not (yield from self._swept(names, **_of(state)))
        yield self.lease.renew(self._lease_ms * 4 // 5)  # over when we come round again

    def _swept(self, names: bytes, epoch: bytes, media: bytes, dropping: bytes) -> _Work[bytes]:
        """The media that stay."""
        tag = self._tag
        for medium in _ids(media):
            yield from self._scan("sweep_claims", (b"c%b%b.%b" % (tag, epoch, medium),), "claims")
        yield from self._scan("sweep_pins", (b"y" + tag, names), "pins")
        orders = (b"%d" % ORDER_MS, tag)
        yield from self._scan("sweep_orders", (names, b"o" + tag), "orders", orders)
        used = yield from self._stores()
        left = [medium for medium in _ids(media) if medium not in used]
        for start in range(0, len(left), MEDIA_A_STEP):
            some = b"".join(left[start : start + MEDIA_A_STEP])
            now = unpacked((yield self._act("sweep_media", (names,), (some, *self._limits))))
            media, dropping = now[b"media"], now[b"dropping"]
        if dropping:
            yield from self._stores()  # what is left of any there: it must announce all again
        yield from self._families(epoch, dropping)
        yield self._act("sweep_dropped", (names,), (dropping, epoch))
        return media

    def _stores(self) -> _Work[set[bytes]]:
        """End those that are to go; the media of the others."""
        own = tuple(family + self._tag for family in (b"n", b"s", b"q", b"x"))
        return self._scan("sweep_stores", own, "stores", (*self._limits, self._tag))

    def _act(self, name: str, own: Sequence[bytes], args: Sequence[bytes]) -> Flow[Reply]:
        if self.lease is None:
            raise LeaseLost
        return self.lease.act(name, own, args)

    def _scan(
        self, name: str, own: Sequence[bytes], counter: str, args: Sequence[bytes] = ()
    ) -> _Work[set[bytes]]:
        cursor, kept = b"0", set[bytes]()
        while True:
            found = unpacked((yield self._act(name, own, (cursor, *args))))
            self.counters[counter] += found[b"dropped"]
            kept.update(_ids(found.get(b"kept", b"")))
            cursor = found[b"cursor"]
            if cursor == b"0":
                return kept

    def _families(self, epoch: bytes, dropping: bytes) -> _Work[None]:
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

    def _unlink(self, family: bytes, buckets: int) -> _Work[None]:
        names = b"n" + self._tag
        epoch, _, medium = family.partition(b".")
        for start in range(0, buckets, UNLINK_KEYS):
            numbers = range(start, min(start + UNLINK_KEYS, buckets))
            pages = [keys.page_key(self._tag, int(epoch), medium, n) for n in numbers]
            self.counters["keys"] += yield self._act("sweep_keys", (names, *pages), (b"",))
        claims = b"c" + self._tag + family
        yield self._act("sweep_keys", (names, claims), (family,))


def _of(state: dict[bytes, Any]) -> dict[str, bytes]:
    return {
        "epoch": b"%d" % state[b"epoch"],
        "media": state[b"media"],
        "dropping": state[b"dropping"],
    }


def _ids(joined: bytes) -> Sequence[bytes]:
    size = keys.MEDIUM_ID_BYTES
    return [joined[i : i + size] for i in range(0, len(joined), size)]
