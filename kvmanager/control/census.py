"""One look at a namespace: what there is, what was reported, what the last check found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hicache_backends.errors import RegistryRefused
from kvmanager import figures, reports, resp
from kvmanager.control import checks, namespaces
from kvmanager.control.checks import FsckResult
from kvmanager.control.namespaces import NamespaceRecord, StoreRecord
from kvmanager.flow import Flow, answer
from kvmanager.replies import read_done
from kvmanager.reports import Record
from kvmanager.scripts import Call

LOADED_TOKENS = "loaded.tokens"
"""A sum of our own beside those of `figures`: pages read, in tokens."""
ENOUGH_CLAIMS = 16_384
"""So many are counted of a namespace, and a few thousand more."""
_MEDIA_A_CALL = 256


@dataclass(frozen=True, slots=True)
class ClaimCount:
    """Claims that are held, and that ran out and are not swept yet. `whole`: all were counted."""

    held: int = 0
    orphans: int = 0
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Look:
    """A namespace at one moment. `sums`: by the names of `figures`, and LOADED_TOKENS; `records`:
    by process."""

    record: NamespaceRecord
    sums: Mapping[str, int]
    stores: list[StoreRecord]
    records: Mapping[bytes, Record]
    claims: ClaimCount
    fsck: FsckResult | None


def look(record: NamespaceRecord) -> Flow[Look]:
    """What there is of a namespace now."""
    tag = record.tag
    sums = yield from figures.totals(tag)
    if "get.hits" in sums:
        loaded = sums["get.hits"] * record.namespace.page_tokens
        sums[LOADED_TOKENS] = min(loaded, figures.MAX_SUM)
    stores = yield from namespaces.members(tag)
    processes = sorted({store.process for store in stores})
    records = yield from reports.records(tag, processes)
    claims = yield from count_claims(record)
    kept = yield resp.command(b"GET", b"f" + tag)
    return Look(record, sums, stores, records, claims, checks.read(kept))


def look_or_none(record: NamespaceRecord) -> Flow[Look | None]:
    """The same; None of one that is not as it should be, which must not hide the others."""
    try:
        return (yield from look(record))
    except RegistryRefused as error:
        namespaces.note(record.tag, str(error))
        return None


def clock() -> Flow[float]:
    """Seconds of Redis TIME, with milliseconds."""
    reply = yield from answer(Call.of("clock", (), ()))
    try:
        return int(read_done(reply)) / 1000
    except ValueError as error:
        raise RegistryRefused(f"the server's clock is malformed: {error}") from None


def count_claims(record: NamespaceRecord) -> Flow[ClaimCount]:
    """The claims on all its media, some media a call."""
    families = [b"c%b%d.%b" % (record.tag, record.epoch, medium.id) for medium in record.media]
    held, orphans, whole, done = 0, 0, True, 0
    while done < len(families) and held + orphans < ENOUGH_CLAIMS:
        some = families[done : done + _MEDIA_A_CALL]
        reply = yield from answer(Call.of("claims", some, ()))
        more_held, more_orphans, all_there, media = map(int, read_done(reply).split())
        held, orphans, whole = held + more_held, orphans + more_orphans, whole and bool(all_there)
        done += max(1, media)
    return ClaimCount(held, orphans, whole and done >= len(families))
