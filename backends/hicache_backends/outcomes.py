"""What became of each page of a batch: one outcome a key, in order."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reason(str, Enum):
    """Why a page was not read or not stored. The values are metric labels: never rename one."""

    NEVER_WRITTEN = "never_written"
    BEING_WRITTEN = "being_written"
    EVICTED = "evicted"
    EXPIRED = "expired"
    OTHER_HOST = "other_host"  # only on a disk that this host does not reach
    STALE_LOCATION = "stale_location"  # the slot holds another page by now
    CHECKSUM = "checksum"
    IO_ERROR = "io_error"
    TIMEOUT = "timeout"
    NO_SPACE = "no_space"
    QUOTA = "quota"  # beyond the limit that is ordered; the medium may have room
    MODE = "mode"  # not tried: the mode in force, off or read, forbids it
    IDENTITY = "identity"
    REGISTRY_DOWN = "registry_down"
    REGISTRY_REBUILDING = "registry_rebuilding"
    SKIPPED = "skipped"  # not tried; `detail` says why


@dataclass(frozen=True, slots=True)
class Outcome:
    """The fate of one page.

    `ok`: read into its buffer and verified (get), or safely on the medium (put, remove).
    `reason`: None when ok, else why not. `detail`: for people: errno name, path, limit.
    `existed`: a put that found the page already there and wrote nothing.
    `location`: after a put, at most 48 bytes by which any process that reaches the medium
    reads the page; empty where the medium finds pages by digest alone.
    """

    ok: bool
    reason: Reason | None = None
    detail: str = ""
    existed: bool = False
    location: bytes = b""

    def __bool__(self) -> bool:
        return self.ok


HIT = Outcome(True)
REMOVED = Outcome(True)
NEVER_WRITTEN = Outcome(False, Reason.NEVER_WRITTEN)
EVICTED = Outcome(False, Reason.EVICTED)
STALE = Outcome(False, Reason.STALE_LOCATION)
BAD_CHECKSUM = Outcome(False, Reason.CHECKSUM)
TIMED_OUT = Outcome(False, Reason.TIMEOUT)


def miss(reason: Reason, detail: str = "") -> Outcome:
    """A failed outcome with its reason."""
    return Outcome(False, reason, detail)
