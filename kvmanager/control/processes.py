"""The processes of a namespace: where they are, what they keep, what is ordered of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvmanager import reports
from kvmanager.control import namespaces
from kvmanager.control.namespaces import NamespaceRecord, StoreRecord
from kvmanager.flow import Flow, answer
from kvmanager.model import first_token
from kvmanager.reports import Gauges
from kvmanager.scripts import Call

MODES = ("off", "read", "read_write")
_MAX_TOKENS = 1 << 40
"""Of one store, beyond its first."""
_CLAIMS_A_STEP = b"512"
MAX_CLAIM_STEPS = 256
"""Claims beyond these are not looked at."""


@dataclass(frozen=True, slots=True)
class ProcessRecord:
    """One process in one namespace. `ordered`: the mode that is ordered of it by itself; `gauges`:
    what it last reported, None if it did not."""

    process: bytes
    namespace: NamespaceRecord
    stores: tuple[StoreRecord, ...]
    ordered: str | None
    gauges: Gauges | None

    @property
    def alive(self) -> bool:
        """Whether it is there."""
        return self.stores[0].alive

    @property
    def host(self) -> str:
        """Its machine."""
        return self.stores[0].host

    @property
    def server(self) -> str:
        """The set of processes that answer together, one of which it is."""
        return self.stores[0].server

    @property
    def seen_s(self) -> int:
        """Its last heartbeat, seconds of TIME."""
        return max(store.seen_s for store in self.stores)

    @property
    def obeyed(self) -> str | None:
        """The ordered mode that is in force; None before any is."""
        return self.stores[0].mode

    @property
    def mode(self) -> str | None:
        """The mode in force, None if it is not known."""
        return self.obeyed or (self.gauges.mode if self.gauges else None)


def of_namespace(record: NamespaceRecord) -> Flow[list[ProcessRecord]]:
    """Its processes, in the order of their uuids."""
    stores: defaultdict[bytes, list[StoreRecord]] = defaultdict(list)
    for store in (yield from namespaces.members(record.tag)):
        if not store.unattended:
            stores[store.process].append(store)
    processes = sorted(stores)
    told = yield from reports.records(record.tag, processes)
    modes = yield from _ordered(record.tag, processes)
    return [
        ProcessRecord(
            process,
            record,
            tuple(stores[process]),
            modes.get(process),
            told[process].gauges if process in told else None,
        )
        for process in processes
    ]


def order(
    tag: bytes, processes: Sequence[bytes], mode: str | None, only: str | None = None
) -> Flow[None]:
    """Order a mode of processes; None withdraws an order, or only one of the mode `only`."""
    if processes:
        args = ((mode or "").encode(), (only or "").encode(), *processes)
        yield from answer(Call.of("order", (b"o" + tag,), args))


def claims_held(record: NamespaceRecord, stores: Iterable[StoreRecord]) -> Flow[Counter[bytes]]:
    """How many pages each of these stores (by uuid) has claimed and not written yet."""
    held: Counter[bytes] = Counter()
    by_medium: defaultdict[bytes, dict[bytes, int]] = defaultdict(dict)
    for store in stores:
        by_medium[store.medium_id][store.store] = first_token(store.process, store.store)
    for medium, firsts in by_medium.items():
        tokens = yield from _tokens(b"c%b%d.%b" % (record.tag, record.epoch, medium))
        for token, count in tokens.items():
            held.update({s: count for s, first in firsts.items() if _is_of(token, first)})
    return held


def _is_of(token: bytes, first: int) -> bool:
    return (int.from_bytes(token, "big") - first) % (1 << 64) < _MAX_TOKENS


def _tokens(key: bytes) -> Flow[Counter[bytes]]:
    found: Counter[bytes] = Counter()
    cursor = b"0"
    for _ in range(MAX_CLAIM_STEPS):
        reply = yield from answer(Call.of("holders", (key,), (cursor, _CLAIMS_A_STEP)))
        cursor, tokens = namespaces.unpacked(reply)
        found.update(tokens)
        if cursor == b"0":
            break
    return found


def _ordered(tag: bytes, processes: Sequence[bytes]) -> Flow[Mapping[bytes, str]]:
    if not processes:
        return {}
    reply = yield from answer(Call.of("values", (b"o" + tag,), processes))
    given = zip(processes, namespaces.unpacked(reply), strict=True)
    return {process: mode.split()[0].decode() for process, mode in given if mode}
