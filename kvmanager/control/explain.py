"""Where pages are, or why a process that asked for them would miss them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hicache_backends.errors import RegistryRefused
from hicache_backends.identity import DIGEST_BYTES
from hicache_backends.native_calls import page_digests
from hicache_backends.outcomes import Reason
from kvmanager import reports
from kvmanager.control.namespaces import (
    MediumRecord,
    NamespaceRecord,
    StoreRecord,
    describe,
    members,
    unpacked,
)
from kvmanager.flow import Flow, answer
from kvmanager.model import State
from kvmanager.probe import UNIT_MS
from kvmanager.scripts import Call

MAX_PAGES = 256
"""Of one question."""
MAX_MEDIA = 1024
_MEDIA_A_CALL = 256
_HEAD_BYTES = 7
_REPORTED = b"\0"
_CHILDREN = 0x3FFF
_UNITS = 1 << 32


@dataclass(frozen=True, slots=True)
class Copy:
    """One copy of a page. `store` and its process are None where the registry knows the store no
    more; `alive`: its process is there; `reached`: by the process that asks, or by any that lives
    where nobody in particular asks; `used_s`: since an access was noted; `children`: pages that
    follow it on the medium."""

    medium: bytes
    shared: bool
    location: bytes
    store: bytes
    host: str
    server: str
    alive: bool
    reached: bool
    used_s: float
    children: int


@dataclass(frozen=True, slots=True)
class Explained:
    """A page: `reason` says why it would be missed, None that it would be found; `detail` says the
    same for people. `pinned_until_s`: 0 where it is not."""

    digest: bytes
    copies: tuple[Copy, ...]
    reason: Reason | None
    detail: str
    pinned_until_s: int


@dataclass(frozen=True, slots=True)
class Scene:
    """What is the same for all pages of a question. `reach`: media (uuids) of the process that
    asks; None: whoever lives."""

    record: NamespaceRecord
    stores: Mapping[bytes, StoreRecord]
    media: Mapping[bytes, MediumRecord]
    living: frozenset[bytes]
    rebuilding: bool
    reach: frozenset[bytes] | None

    def reached(self, medium: MediumRecord) -> bool:
        """Whether what lies there can be read."""
        if self.reach is not None:
            return medium.uuid in self.reach
        return medium.id in self.living


def explain(
    tag: bytes, pages: Sequence[str] | Sequence[bytes], reach: Collection[bytes] | None = None
) -> Flow[list[Explained] | None]:
    """What became of each page, named by its hash or its digest, for a process that reaches these
    media (uuids), or for any that lives; None if there is no such namespace. Raises InvalidKey."""
    record = yield from describe(tag)
    if record is None:
        return None
    scene = yield from _scene(record, None if reach is None else frozenset(reach))
    digests = _digests(record, pages)
    said = yield from _asked(tag, digests)
    if said is None:
        return None
    try:
        return list(_explained(scene, said, digests))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        raise _malformed(error) from error


def _asked(tag: bytes, digests: Sequence[bytes]) -> Flow[list[Any] | None]:
    """What the registry knows of each page on all media, in calls of some media and some pages
    each; None where it forgets the namespace."""
    known: list[Any] = [{} for _ in digests]
    keys = (b"n" + tag, b"e" + tag, b"y" + tag)
    rest = bool(digests)
    for passed in range(0, MAX_MEDIA, _MEDIA_A_CALL):
        done = 0
        while rest and done < len(digests):
            args = (tag, b"".join(digests[done:]), b"%d" % passed)
            raw = unpacked((yield from answer(Call.of("explain", keys, args))))
            if not raw:
                return None
            try:
                if not 0 < len(raw[b"pages"]) <= len(digests) - done:
                    raise ValueError("not so many pages were asked for")
                for page in raw[b"pages"]:
                    _add(known[done], page, raw)
                    done += 1
                more = bool(raw[b"rest"])
            except (ValueError, TypeError, KeyError, AttributeError) as error:
                raise _malformed(error) from error
        rest = rest and more
    return known


def _add(known: dict[bytes, Any], page: Mapping[bytes, Any], raw: Mapping[bytes, Any]) -> None:
    """What some media more say of a page."""
    for name in (b"at", b"claims"):
        known.setdefault(name, []).extend(page[name])
    for name in (b"told", b"cleared", b"dropped"):
        known[name] = known.get(name) or page.get(name)
    known |= {b"pinned": page[b"pinned"], b"units": raw[b"units"], b"ms": raw[b"ms"]}


def _malformed(error: Exception) -> RegistryRefused:
    return RegistryRefused(f"a reply is malformed: {error!r}")


def _scene(record: NamespaceRecord, reach: frozenset[bytes] | None) -> Flow[Scene]:
    stores = yield from members(record.tag)
    alive = [store for store in stores if store.alive]
    told = yield from reports.records(record.tag, sorted({store.process for store in alive}))
    return Scene(
        record,
        {store.store: store for store in stores},
        {medium.id: medium for medium in record.media},
        frozenset(store.medium_id for store in alive),
        any(each.gauges.breaker == State.REBUILDING.value for each in told.values()),
        reach,
    )


def _digests(record: NamespaceRecord, pages: Sequence[str] | Sequence[bytes]) -> list[bytes]:
    if len(pages) > MAX_PAGES:
        raise ValueError(f"at most {MAX_PAGES} pages are explained at once")
    hashes = [page for page in pages if isinstance(page, str)]
    digests = [page for page in pages if isinstance(page, bytes)]
    if any(len(digest) != DIGEST_BYTES for digest in digests):
        raise ValueError(f"a digest has {DIGEST_BYTES} bytes")
    return page_digests(record.namespace.fingerprint, hashes) if hashes else digests


def _explained(scene: Scene, said: Sequence[Any], digests: Sequence[bytes]) -> Iterator[Explained]:
    for digest, page in zip(digests, said, strict=True):
        entries = [(medium, entry) for medium, entry in page[b"at"] if medium in scene.media]
        copies = tuple(
            _copy(scene, scene.media[medium], entry, page[b"units"])
            for medium, entry in entries
            if entry[:1] != _REPORTED
        )
        reported = any(entry[:1] == _REPORTED for _, entry in entries)
        reason, detail = _why(scene, copies, page, page[b"ms"], reported=reported)
        yield Explained(digest, copies, reason, detail, int(page[b"pinned"]))


def _copy(scene: Scene, medium: MediumRecord, entry: bytes, units: int) -> Copy:
    location = entry[_HEAD_BYTES:]
    store = scene.stores.get(location[:16])
    age = (units - int.from_bytes(entry[1:5], "big")) % _UNITS
    return Copy(
        medium.uuid,
        medium.shared,
        location,
        location[:16] if len(location) >= 16 else b"",
        store.host if store else "",
        store.server if store else "",
        store.alive if store else False,
        scene.reached(medium),
        age * UNIT_MS / 1000,
        int.from_bytes(entry[5:7], "big") & _CHILDREN,
    )


def _why(
    scene: Scene, copies: Sequence[Copy], page: Any, now_ms: int, *, reported: bool
) -> tuple[Reason | None, str]:
    """Why it is missed, and in words."""
    mode = scene.record.mode or scene.record.tenant_mode
    if mode == "off":
        return Reason.MODE, "the namespace is switched off: its mode is off"
    reached = [copy for copy in copies if copy.reached]
    if reached:
        return None, f"stored by {_owner(reached[0])}"
    if copies:
        return Reason.OTHER_HOST, _out_of_reach(scene, copies[0])
    if page[b"claims"]:
        left_s = (max(end for _, end in page[b"claims"]) - now_ms) / 1000
        return Reason.BEING_WRITTEN, f"being written, for {left_s:.1f} s more at most"
    if reported:
        return Reason.STALE_LOCATION, "a reader found it wrong or missing; its owner looks at it"
    return _why_nowhere(scene, page, now_ms)


def _why_nowhere(scene: Scene, page: Any, now_ms: int) -> tuple[Reason, str]:
    if page.get(b"told"):
        sequence, kind, reader = page[b"told"]
        ago_s = max(0.0, (now_ms - int(sequence.partition(b"-")[0])) / 1000)
        if kind == b"removed" and reader:
            return Reason.STALE_LOCATION, f"a reader found it wrong or missing, {ago_s:.0f} s ago"
        if kind == b"removed":
            return Reason.EVICTED, f"its owner evicted it {ago_s:.0f} s ago"
    if page.get(b"cleared"):
        return Reason.EVICTED, f"the namespace was cleared since: epoch {scene.record.epoch}"
    if page.get(b"dropped"):
        detail = "it lay on a medium that nobody was seen on for long, which is being forgotten"
        return Reason.OTHER_HOST, detail
    if scene.rebuilding:
        detail = "the registry lost its memory: a process is announcing its pages again"
        return Reason.REGISTRY_REBUILDING, detail
    if not scene.living:
        return Reason.NEVER_WRITTEN, "nobody stores pages of this namespace now"
    return Reason.NEVER_WRITTEN, "never written here, or removed before what is still remembered"


def _owner(copy: Copy) -> str:
    where = f"{copy.server} on {copy.host}" if copy.host else "a process that is forgotten"
    state = "" if copy.alive else ", which is gone; its medium is still reached"
    return f"{where}{state}"


def _out_of_reach(scene: Scene, copy: Copy) -> str:
    kind = "a shared medium" if copy.shared else "the own medium"
    of = f" of {copy.host}" if copy.host else ""
    if scene.reach is not None and copy.alive:
        return f"only on {kind}{of}, which the process that asks does not reach"
    return f"only on {kind}{of}, and no process that is there reaches it"
