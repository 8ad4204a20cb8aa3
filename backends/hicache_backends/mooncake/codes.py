"""Mooncake's result codes, each mapped on purpose."""

from __future__ import annotations

from hicache_backends.outcomes import BAD_CHECKSUM, HIT, NEVER_WRITTEN, Outcome, Reason, miss

NO_SPACE = -200
INVALID = -600
NOT_READY = -703
MISSING = -704
EXISTS = -705
LEASED = -706
LEASE_OVER = -707
TRANSFER_FAILED = -800
NO_MASTER = -900
MASTER_TIMEOUT = -901
LATE = -100_000
"""Ours: not begun by the deadline."""

_OUTCOMES = {
    NO_SPACE: miss(
        Reason.NO_SPACE, "Mooncake -200: no segment has room; it evicts behind the call"
    ),
    NOT_READY: miss(Reason.BEING_WRITTEN, "Mooncake -703: no replica is complete"),
    MISSING: NEVER_WRITTEN,
    EXISTS: HIT,
    LEASED: miss(Reason.IO_ERROR, "Mooncake -706: leased to a reader"),
    LEASE_OVER: miss(Reason.EXPIRED, "Mooncake -707: the lease was shorter than the transfer"),
    TRANSFER_FAILED: miss(Reason.IO_ERROR, "Mooncake -800: the process that holds it is silent"),
    NO_MASTER: miss(Reason.IO_ERROR, "Mooncake -900: the master cannot be reached"),
    MASTER_TIMEOUT: miss(Reason.TIMEOUT, "Mooncake -901: the master does not answer"),
    LATE: miss(Reason.TIMEOUT, "not begun by the deadline"),
}


def outcome_of(code: int, *, reading: int = 0) -> Outcome:
    """What a code means for its page. `reading`: the bytes that a read should have brought."""
    if code >= 0:
        return HIT if not reading or code == reading else BAD_CHECKSUM
    if reading and code == INVALID:  # an object of another length
        return BAD_CHECKSUM
    return _OUTCOMES.get(code, miss(Reason.IO_ERROR, f"Mooncake {code}"))
