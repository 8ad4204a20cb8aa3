"""The prefixes that a tenant's processes load most, merged from their reports.

A prefix is called by its namespace and the digest of its first page. Loads fade with time, so that
what is hot today is not below what was hot last week; a report is added once, and those that came
and went between two steps are missed: this is a ranking, no count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import msgpack

from hicache_backends.identity import DIGEST_BYTES
from kvmanager import keys
from kvmanager.control import namespaces
from kvmanager.control.leases import Lease
from kvmanager.flow import Flow, answer
from kvmanager.replies import read_done
from kvmanager.reports import MAX_HOT, Record
from kvmanager.scripts import Call

MOST = 1000
HALF_LIFE_S = 3600.0
MAX_REPORTS = 512
"""Of one tenant that are merged in a step."""
_A_STEP = 32


@dataclass(frozen=True, slots=True)
class Prefix:
    """`tag`: of its namespace; `digest`: of its first page; `loads`: those of long ago count less;
    `pages`: of a usual load, None if unknown."""

    tag: bytes
    digest: bytes
    loads: float
    pages: int | None


@dataclass(frozen=True, slots=True)
class Told:
    """What one process of a namespace reported."""

    tag: bytes
    process: bytes
    record: Record


def merge(lease: Lease, tenant: bytes, told: Iterable[Told], since_s: float) -> Flow[int]:
    """Add reports of all processes that there are, `since_s` after the last time; how many were
    new. Raises LeaseLost."""
    reports = [_report(one) for one in told][:MAX_REPORTS]
    own = (*_keys(tenant), b"z" + tenant + b"last", b"z" + tenant + b"next")
    fade, new = 0.5 ** (since_s / HALF_LIFE_S), 0
    for start in range(0, max(1, len(reports)), _A_STEP):
        some: bytes = msgpack.packb(reports[start : start + _A_STEP], use_bin_type=False)
        last = b"1" if start + _A_STEP >= len(reports) else b""
        reply = yield from lease.act("popularity", own, (b"%.9f" % fade, b"%d" % MOST, some, last))
        new, fade = new + int(read_done(reply)), 1.0
    return new


def hottest(tenant: bytes, most: int) -> Flow[list[Prefix]]:
    """The prefixes loaded most, those first."""
    reply = yield from answer(Call.of("hottest", _keys(tenant), (b"%d" % most,)))
    rows = namespaces.unpacked(reply)
    size = namespaces.ID_BYTES
    return [
        Prefix(keys.tag(name), name[size:], float(loads), int(pages) if pages else None)
        for name, loads, pages in rows
        if len(name) == size + DIGEST_BYTES
    ]


def _keys(tenant: bytes) -> tuple[bytes, bytes]:
    return b"z" + tenant, b"z" + tenant + b"pages"


def _report(told: Told) -> list[object]:
    own = keys.tag_bytes(told.tag)
    hot: list[object] = []
    for prefix in told.record.gauges.hot[:MAX_HOT]:
        hot += [own + prefix.digest, max(0, prefix.loads), max(0, prefix.pages)]
    return [own + told.process, told.record.number, hot]
