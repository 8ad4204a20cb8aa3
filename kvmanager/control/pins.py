"""Pages that are to stay: their owners do not evict them before a pin's end.

At most `MAX_PINS` a namespace; a pin keeps a page where it is, and brings none.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvmanager.control import namespaces
from kvmanager.flow import Flow, answer
from kvmanager.scripts import Call

MAX_PINS = 65_536
MAX_PIN_S = 7 * 24 * 3600
_A_STEP = b"1000"


def pin(tag: bytes, digests: Sequence[bytes], for_s: int) -> Flow[int | None]:
    """Pin pages of a namespace for so long from now; how many are pinned then. None where that
    would be too many: nothing is done."""
    args = (b"%d" % min(for_s, MAX_PIN_S), b"%d" % MAX_PINS, *digests)
    count: int = yield from answer(Call.of("pin", _keys(tag), args))
    return count if count >= 0 else None


def unpin(tag: bytes, digests: Sequence[bytes]) -> Flow[int]:
    """End pins, all of the namespace where no digest is given; how many there were."""
    ended: int = yield from answer(Call.of("unpin", _keys(tag), digests))
    return ended


def pinned(tag: bytes) -> Flow[list[tuple[bytes, int]]]:
    """The pins of a namespace: digests in their order, and when each ends (seconds of TIME)."""
    found: dict[bytes, int] = {}
    cursor = b"0"
    while len(found) < MAX_PINS:
        reply = yield from answer(Call.of("pinned", (b"y" + tag,), (cursor, _A_STEP)))
        cursor, flat = namespaces.unpacked(reply)
        found.update(zip(flat[::2], map(int, flat[1::2]), strict=True))
        if cursor == b"0":
            break
    return sorted(found.items())


def _keys(tag: bytes) -> tuple[bytes, bytes]:
    return b"y" + tag, b"n" + tag
