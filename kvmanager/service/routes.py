"""The data routes: which script each calls, how its reply becomes a document, who may ask.

One route is one call of one script, or a probe in its place, built and read by `wire.Wire`, as in
every process that talks to Redis itself.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

from hicache_backends.identity import Namespace
from hicache_backends.outcomes import Reason
from hicache_backends.storage import PageEntry
from kvmanager.model import Member
from kvmanager.probe import UNIT_MS, Probe, Routes
from kvmanager.resp import Reply
from kvmanager.scripts import Call
from kvmanager.service import documents as d
from kvmanager.service.access import Role
from kvmanager.wire import Wire

NOBODY = bytes(16)
"""Stands for the process, store or medium that a call does not name."""
NODES = frozenset({Role.NODE, Role.ADMIN})
READERS = frozenset({Role.NODE, Role.ROUTER, Role.ADMIN})
ENLISTED_AGAIN = 1 / 32
"""Of all heartbeats."""
_BEAT_FIELDS = (
    "epoch",
    "sequence",
    "clear",
    "returned",
    "mode",
    "now",
    "limit_bytes",
    "ttl_ms",
)

Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Plan:
    """A command for the server, what its reply says, and a command to send after it. `routes`:
    those that want to know the server's clock."""

    call: Call | Probe | bytes
    read: Callable[[Any], Answer]
    after: Callable[[Answer], bytes | None] = lambda _answer: None
    routes: Routes | None = None


@dataclass(frozen=True, slots=True)
class DataRoute:
    """POST /v1/`name`, with a document of the class `asks`, answered with one of `answers`."""

    name: str
    asks: type[d.Asked]
    answers: type[d.Document]
    roles: frozenset[Role]
    plan: Callable[[Namespace, Any], Plan]
    summary: str

    @property
    def path(self) -> str:
        """Of the URL."""
        return f"/v1/{self.name}"


def _lookup(namespace: Namespace, asked: d.LookupAsked) -> Plan:
    wire = _wire(namespace)
    routes = _routes(wire.tag, asked.touch_interval_ms // UNIT_MS)
    call: Call | Probe
    if asked.counts and asked.prefix and asked.digests and routes.may_suffice(asked.media):
        call = routes.probe(asked.epoch, asked.digests, asked.media, why=asked.why)
    else:
        call = wire.lookup(
            asked.epoch, asked.digests, asked.media, asked.prefix, routes.touch_interval
        )

    def read(reply: Reply | list[bytes]) -> Answer:
        if not isinstance(reply, list):
            routes.scripted(wire.first_found(reply))
        found = wire.read_lookup(reply, len(asked.digests), Reason.NEVER_WRITTEN)
        counted = wire.counted(reply)
        return {"locations": found.locations, "reasons": found.reasons, "counted": counted}

    return Plan(call, read, routes=routes)


def _claim(namespace: Namespace, asked: d.ClaimAsked) -> Plan:
    wire = _wire(namespace, medium=asked.medium)
    call = wire.claim(asked.epoch, asked.digests, asked.token, asked.ttl_ms)

    def read(reply: Reply) -> Answer:
        claims = wire.read_claims(reply, len(asked.digests))
        return {"claims": bytes(claim.value for claim in claims)}

    return Plan(call, read)


def _abort(namespace: Namespace, asked: d.AbortAsked) -> Plan:
    wire = _wire(namespace, medium=asked.medium)
    return Plan(wire.abort(asked.epoch, asked.digests, asked.token), partial(_done, wire))


def _publish(namespace: Namespace, asked: d.PublishAsked) -> Plan:
    wire = _wire(namespace, store=asked.store, medium=asked.medium)
    call = wire.publish(asked.epoch, asked.sequence, _entries(asked), claimed=asked.claimed)
    return Plan(call, partial(_mutated, wire, asked.sequence))


def _remove(namespace: Namespace, asked: d.RemoveAsked) -> Plan:
    wire = _wire(namespace, store=asked.store, medium=asked.medium)
    call = wire.remove(asked.epoch, asked.sequence, _entries(asked), asked.touched_ms)
    return Plan(call, partial(_mutated, wire, asked.sequence))


def _report_bad(namespace: Namespace, asked: d.ReportAsked) -> Plan:
    wire = _wire(namespace)
    call = wire.report(asked.epoch, asked.digest, asked.location, asked.parent)
    return Plan(call, partial(_done, wire))


def _clear(namespace: Namespace, _asked: d.Asked) -> Plan:
    wire = _wire(namespace)
    return Plan(wire.clear(), lambda reply: {"epoch": wire.read_epoch(reply)})


def _beat(namespace: Namespace, asked: d.BeatAsked) -> Plan:
    wire = Wire(namespace, asked.member())

    def read(reply: Reply) -> Answer:
        beat = wire.read_beat(reply)
        bad = [{"digest": entry.digest, "location": entry.location} for entry in beat.bad]
        return {**{name: getattr(beat, name) for name in _BEAT_FIELDS}, "bad": bad}

    def enlist(answer: Answer) -> bytes | None:
        # now and then again: another shard of a Cluster has the list, and may lose it alone
        due = not answer["returned"] or random.random() < ENLISTED_AGAIN  # noqa: S311  # no secret
        return wire.enlist() if due else None

    call = wire.beat(asked.obeyed, asked.ttl_ms, asked.hits, asked.begin, asked.mode)
    return Plan(call, read, enlist)


def _figures(namespace: Namespace, asked: d.FiguresAsked) -> Plan:
    wire = _wire(namespace, process=asked.process)
    return Plan(wire.figures(asked.report()), partial(_done, wire))


def _leave(namespace: Namespace, asked: d.LeaveAsked) -> Plan:
    wire = _wire(namespace, process=asked.process, store=asked.store or NOBODY)
    return Plan(wire.leave(), partial(_done, wire))


DATA_ROUTES = (
    DataRoute("lookup", d.LookupAsked, d.LookupAnswer, READERS, _lookup, "Where pages are"),
    DataRoute("claim", d.ClaimAsked, d.ClaimAnswer, NODES, _claim, "The right to write pages"),
    DataRoute("publish", d.PublishAsked, d.MutationAnswer, NODES, _publish, "Make pages known"),
    DataRoute("abort", d.AbortAsked, d.Done, NODES, _abort, "Give claims up"),
    DataRoute("remove", d.RemoveAsked, d.MutationAnswer, NODES, _remove, "Forget pages"),
    DataRoute("report_bad", d.ReportAsked, d.Done, NODES, _report_bad, "A page is wrong"),
    DataRoute("register", d.BeatAsked, d.BeatAnswer, NODES, _beat, "A process begins"),
    DataRoute("heartbeat", d.BeatAsked, d.BeatAnswer, NODES, _beat, "A process is still there"),
    DataRoute("figures", d.FiguresAsked, d.Done, NODES, _figures, "What a process counted"),
    DataRoute("leave", d.LeaveAsked, d.Done, NODES, _leave, "A process ends"),
    DataRoute("clear", d.Asked, d.ClearAnswer, NODES, _clear, "Void a namespace's pages"),
)


def tag_of(namespace: Namespace) -> bytes:
    """The hash tag of its keys."""
    return _wire(namespace).tag


def _wire(
    namespace: Namespace,
    *,
    process: bytes = NOBODY,
    store: bytes = NOBODY,
    medium: bytes = NOBODY,
) -> Wire:
    ns = namespace
    texts = (ns.model, ns.revision, ns.kv_dtype, ns.layout, ns.pool, ns.tenant, ns.salt)
    known = sum(map(len, texts)) <= d.MAX_KNOWN_BYTES
    return (_known_wire if known else _known_wire.__wrapped__)(ns, process, store, medium)


@lru_cache(4096)
def _known_wire(namespace: Namespace, process: bytes, store: bytes, medium: bytes) -> Wire:
    return Wire(namespace, Member(process, "", "", store, medium))


@lru_cache(512)  # of up to 100 KiB each
def _routes(tag: bytes, touch_interval: int) -> Routes:
    """What was learned of a namespace's pages; whatever of it is wrong costs a round trip."""
    return Routes(tag, touch_interval)


def _entries(asked: d.MutationAsked) -> list[PageEntry]:
    return list(map(PageEntry, asked.digests, asked.parents, asked.locations))


def _mutated(wire: Wire, sequence: int, reply: Reply) -> Answer:
    mutation = wire.read_mutation(reply, sequence)
    return {"last": mutation.last, "applied": mutation.applied, "results": mutation.results}


def _done(wire: Wire, reply: Reply) -> Answer:
    wire.read_done(reply)
    return {}
