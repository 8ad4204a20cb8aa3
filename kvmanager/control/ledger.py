"""A tenant's sums that never fall: what is known of them by namespace, and of those that went.

A namespace that cannot be read now counts with what it had last. What one had that was forgotten,
or that began anew, is added to the sums of all that went. Kept in the tenant's hash tag by whoever
samples its sums, under the lease of that, and for as long as samples are.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from kvmanager import figures, keys
from kvmanager.control import history, namespaces
from kvmanager.control.leases import Lease
from kvmanager.flow import Flow, answer
from kvmanager.scripts import Call

Sums = Mapping[str, int]
Entry = tuple[bytes, Sums]

_GONE = b""  # among the namespaces' tags
_A_STEP = 64


@dataclass(frozen=True, slots=True)
class Ledger:
    """`known`: sums by hash tag; `gone`: of all namespaces that went, together."""

    known: Mapping[bytes, Sums] = field(default_factory=dict)
    gone: Sums = field(default_factory=dict)

    def total(self, seen: Mapping[bytes, Sums]) -> dict[str, int]:
        """Of all namespaces, given the sums of those that were read."""
        parts = [self.gone]
        for tag in self.known.keys() | seen.keys():
            parts += _merged(seen.get(tag), self.known.get(tag, {}))
        return figures.summed(parts)


def read(tenant: bytes) -> Flow[Ledger]:
    """A tenant's (its hash tag)."""
    known: dict[bytes, Sums] = {}
    cursor = b"0"
    while True:
        args = (cursor, b"%d" % _A_STEP)
        reply = yield from answer(Call.of("scan_hash", (_key(tenant),), args))
        cursor, flat = namespaces.unpacked(reply)
        for name, kept in zip(flat[::2], flat[1::2], strict=True):
            known[keys.tag(name) if name else _GONE] = _unpacked(kept)
        if cursor == b"0":
            return Ledger(known, known.pop(_GONE, {}))


def keep(
    lease: Lease, tenant: bytes, ledger: Ledger, seen: Mapping[bytes, Sums], went: Collection[bytes]
) -> Flow[None]:
    """Keep what was seen since. `went`: namespaces that there are no longer. Raises LeaseLost."""
    gone, entries = ledger.gone, list[Entry]()
    for tag in sorted(ledger.known.keys() | seen.keys()):
        before = ledger.known.get(tag, {})
        past, now = (before, {}) if tag in went else _merged(seen.get(tag), before)
        if now != before:
            gone = figures.summed((gone, past))
            entries.append((tag, now))
        if len(entries) == _A_STEP:
            yield from _put(lease, tenant, gone, entries)
            entries = []
    if entries:
        yield from _put(lease, tenant, gone, entries)


def _merged(now: Sums | None, before: Sums) -> tuple[Sums, Sums]:
    """Of a namespace: sums of a past one of that name, and its own. Some that are smaller than
    before were read too early, or lost by a failover; most of them are where it began anew."""
    if now is None:
        return {}, before
    if 2 * sum(now.values()) < sum(before.values()):
        return before, now
    return {}, {name: max(now.get(name, 0), before.get(name, 0)) for name in {*now, *before}}


def _put(lease: Lease, tenant: bytes, gone: Sums, entries: Sequence[Entry]) -> Flow[None]:
    """What went from the entries is in `gone` in the same step."""
    args = [b"%d" % history.RESOLUTIONS[-1].reach_s, _GONE, history.packed_sums(gone)]
    for tag, sums in entries:
        args += [keys.tag_bytes(tag), history.packed_sums(sums) if sums else b""]
    yield from lease.act("ledger", (_key(tenant),), args)


def _unpacked(kept: bytes) -> Sums:
    """Nothing where that cannot be read."""
    try:
        return history.unpacked_sums(kept)
    except (ValueError, TypeError, AttributeError, zlib.error):
        return {}


def _key(tenant: bytes) -> bytes:
    return b"v" + tenant
