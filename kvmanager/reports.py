"""What a process reports every few seconds: counters since the last report, and its state."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import msgpack

from kvmanager import figures
from kvmanager.control import namespaces
from kvmanager.flow import Flow, answer
from kvmanager.scripts import Call

EVERY_S = 10.0
RECORD_TTL_MS = 3600 * 1000
"""A report that was sent, but not answered, is known as such for so long."""
MAX_STORES = 64
MAX_HOT = 16
_STEP = 256


@dataclass(frozen=True, slots=True)
class StoreGauges:
    """One store (its uuid) of a process. `bytes`: of its pages; 0 capacity: bounds itself."""

    store: bytes
    pages: int = 0
    bytes: int = 0
    capacity_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Hot:
    """A first page of loads: how many loads began with it, and their pages. Approximate: at most
    too high by what the least of the list has."""

    digest: bytes
    loads: int
    pages: int


@dataclass(frozen=True, slots=True)
class Gauges:
    """A process as it is now. `hot`: since its last report, the most loaded first."""

    kind: str = "other"  # of figures.KINDS
    mode: str = "read_write"  # in force
    breaker: str = "up"  # a State's value
    hung: bool = False  # an I/O does not come back
    version: str = ""
    started_s: int = 0  # of its host's clock, since 1970
    pages: int = 0
    bytes: int = 0
    capacity_bytes: int = 0
    prefill_tokens_per_s: float = 0  # as configured; 0: not known
    stores: tuple[StoreGauges, ...] = ()
    hot: tuple[Hot, ...] = ()


@dataclass(frozen=True, slots=True)
class Report:
    """`counters`: what is added to the sums. `number`: one that was applied is not again."""

    number: int
    counters: Mapping[str, int]
    gauges: Gauges


@dataclass(frozen=True, slots=True)
class Record:
    """What the registry keeps of a process: the number of its last report, and its state then."""

    number: int
    gauges: Gauges


@dataclass(frozen=True, slots=True)
class Totals:
    """What a process has counted since its start, and its state; the source of reports."""

    counters: Mapping[str, int] = field(default_factory=dict)
    gauges: Gauges = Gauges()


class Reporter:
    """Makes reports of totals. Used by one thread at a time.

    A report without an answer may have been applied, so it is sent again as it was; what has been
    counted meanwhile goes with the next.
    """

    def __init__(self, source: Callable[[], Totals]) -> None:
        self._source = source
        self._told: dict[str, int] = {}
        self._sent: Report | None = None
        self._number = 0

    def next(self) -> Report:
        """The report to send now."""
        if self._sent is not None:
            return self._sent
        totals = self._source()
        added = {
            name: n - self._told.get(name, 0)
            for name, n in totals.counters.items()
            if n > self._told.get(name, 0)
        }
        chosen = dict(sorted(added.items())[: figures.MAX_COUNTERS])
        self._number += 1
        self._sent = Report(self._number, chosen, totals.gauges)
        return self._sent

    @property
    def unanswered(self) -> bool:
        """Whether a report was sent and nobody said that it was applied."""
        return self._sent is not None

    def applied(self) -> None:
        """The registry has the last one."""
        if self._sent is not None:
            for name, n in self._sent.counters.items():
                self._told[name] = self._told.get(name, 0) + n
        self._sent = None


def packed(number: int, gauges: Gauges) -> bytes:
    """A process's record, as the scripts' msgpack reads it: theirs knows no binary type."""
    plain = {f.name: getattr(gauges, f.name) for f in fields(gauges)}
    plain["stores"] = [[s.store, s.pages, s.bytes, s.capacity_bytes] for s in gauges.stores]
    plain["hot"] = [[h.digest, h.loads, h.pages] for h in gauges.hot]
    record: bytes = msgpack.packb({"number": number, **plain}, use_bin_type=False)
    return record


def unpacked(record: bytes) -> Record | None:
    """What a record says; None of one that can't be read. Unknown fields are passed over."""
    try:
        raw: Mapping[bytes, Any] = msgpack.unpackb(record, raw=True)
        told = {f.name: raw[key] for f in fields(Gauges) if (key := f.name.encode()) in raw}
        for name, value in told.items():
            if isinstance(value, bytes):
                told[name] = value.decode()
        told["stores"] = tuple(StoreGauges(*s[:4]) for s in told.get("stores", ()))
        told["hot"] = tuple(Hot(*h[:3]) for h in told.get("hot", ()))
        return Record(int(raw[b"number"]), Gauges(**told))
    except (ValueError, TypeError, KeyError, msgpack.UnpackException):
        return None


def records(tag: bytes, processes: Sequence[bytes]) -> Flow[dict[bytes, Record]]:
    """What processes (uuids) of a namespace last reported; those that did not are left out."""
    found: dict[bytes, Record] = {}
    for start in range(0, len(processes), _STEP):
        some = processes[start : start + _STEP]
        wanted = [b"i" + tag + process for process in some]
        replies = namespaces.unpacked((yield from answer(Call.of("records", wanted, ()))))
        for process, record in zip(some, replies, strict=True):
            read = unpacked(record) if isinstance(record, bytes) else None
            if read is not None:
                found[process] = read
    return found
