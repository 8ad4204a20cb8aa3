"""What checks of a namespace against its media found, kept for whoever looks later.

A check sees some media, those of its host for instance, so that each medium's result stands until
that medium is looked at again. What is wrong with the records beside the pages has the id b"".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgpack

from kvmanager import resp
from kvmanager.flow import Flow, answer
from kvmanager.replies import read_done
from kvmanager.scripts import Call

RECORDS = b""
MAX_KINDS = 64
MAX_PARTS = 1024
_UNLISTED_S = 7 * 86_400
"""Results of media that the namespace does not list are kept for so long."""
_TRIES = 16


@dataclass(frozen=True, slots=True)
class Part:
    """Of one medium (its 8-letter id). `found`: by kind; `time_s`: since 1970."""

    time_s: float
    clean: bool
    found: Mapping[str, int]
    repaired: int


@dataclass(frozen=True, slots=True)
class FsckResult:
    """Of a namespace: all parts as one. `time_s`: of the oldest; `clean`: as far as was looked;
    `media`: that it lists, of which `unseen` were never looked at."""

    time_s: float
    clean: bool
    found: Mapping[str, int]
    repaired: int
    media: int = 0
    unseen: int = 0
    parts: Mapping[bytes, Part] = field(default_factory=dict)


def merged(
    before: FsckResult | None, fresh: Mapping[bytes, Part], listed: Collection[bytes], now_s: float
) -> FsckResult:
    """The results of this check, and of those before about what it has not looked at."""
    old = before.parts if before else {}
    stands = {
        medium: part
        for medium, part in old.items()
        if medium in listed or now_s - part.time_s < _UNLISTED_S
    }
    parts = dict([*fresh.items(), *((m, p) for m, p in stands.items() if m not in fresh)])
    parts = dict([*parts.items()][:MAX_PARTS])
    found: Counter[str] = Counter()
    for part in parts.values():
        found.update(part.found)
    return FsckResult(
        min((part.time_s for part in parts.values()), default=now_s),
        all(part.clean for part in parts.values()),
        dict(found.most_common(MAX_KINDS)),
        sum(part.repaired for part in parts.values()),
        len(listed),
        sum(medium not in parts for medium in listed),
        parts,
    )


def keep(
    tag: bytes, fresh: Mapping[bytes, Part], listed: Collection[bytes], now_s: float
) -> Flow[None]:
    """Have the registry keep them. Checks of other media may do the same at that moment."""
    for _ in range(_TRIES):
        kept = yield resp.command(b"GET", b"f" + tag)
        before = kept if isinstance(kept, bytes) else b""
        after = packed(merged(read(before), fresh, listed, now_s))
        reply = yield from answer(Call.of("swap", (b"f" + tag,), (before, after)))
        if read_done(reply) == b"1":
            return


def packed(result: FsckResult) -> bytes:
    """As it is kept: names before values, so that versions of this module may add some."""
    plain = {name: getattr(result, name) for name in ("time_s", "clean", "repaired", "media")}
    parts = {
        medium.decode("ascii", "replace"): [p.time_s, p.clean, dict(p.found), p.repaired]
        for medium, p in result.parts.items()
    }
    record = {**plain, "found": dict(result.found), "unseen": result.unseen, "parts": parts}
    written: bytes = msgpack.packb(record)
    return written


def read(kept: object) -> FsckResult | None:
    """What is kept of checks; None for nothing, and for what can't be read."""
    if not isinstance(kept, bytes):
        return None
    try:
        raw: Mapping[str, Any] = msgpack.unpackb(kept)
        parts = list(raw.get("parts", {}).items())[:MAX_PARTS]
        return FsckResult(
            *_facts(raw["time_s"], raw["clean"], raw["found"], raw["repaired"]),
            int(raw.get("media", 0)),
            int(raw.get("unseen", 0)),
            {medium.encode(): Part(*_facts(*part[:4])) for medium, part in parts},
        )
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError):
        return None


def _facts(
    time_s: Any, clean: Any, found: Any, repaired: Any
) -> tuple[float, bool, dict[str, int], int]:
    kinds = {str(kind): int(n) for kind, n in list(found.items())[:MAX_KINDS]}
    return float(time_s), bool(clean), kinds, int(repaired)
