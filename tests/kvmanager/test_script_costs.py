"""No script holds the server up, however large a namespace is: by the server's own clock."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.segment.format import Location
from hicache_backends.storage import ROOT, PageEntry
from kvmanager import figures, keys, scripts
from kvmanager.control import (
    audit,
    census,
    checks,
    events,
    explain,
    history,
    leases,
    ledger,
    locate,
    namespaces,
    pins,
    popularity,
    processes,
    quotas,
    tenants,
)
from kvmanager.control.leases import Lease
from kvmanager.control.snapshot import Snapshot
from kvmanager.control.sweep import Sweep
from kvmanager.flow import answer
from kvmanager.model import MAX_KEYS, Member
from kvmanager.reports import Gauges, Report
from kvmanager.scripts import Call
from kvmanager.service.loops.sweeping import _FAMILIES
from kvmanager.wire import Wire
from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.members import NAMESPACE
from tests.kvmanager.reporters import Redis
from tests.kvmanager.scale import MEDIA, PAGES, Filler, digest
from tests.kvmanager.servers import Server

__all__ = ["server_binary"]

LONGEST_US = 30_000
"""Three times what is promised: others use this machine as well."""
TRIES, NOTED = 3, 1000
TENANT = keys.tenant_tag(NAMESPACE.tenant)
PRESENT = [digest(n) for n in range(MAX_KEYS)]
MISSING = [digest(PAGES + n) for n in range(MAX_KEYS)]


class Namespace:
    """One that is full, and calls of everything that a process, a route or a loop asks."""

    def __init__(self, redis: Redis, server: Server) -> None:
        self._run = redis.run
        self._server = server
        self._me = Member(os.urandom(16), "host", "server", os.urandom(16), os.urandom(16))
        self._wire = Wire(NAMESPACE, self._me)
        self._tag = self._wire.tag
        self._call(self._wire.beat(0, 600_000))
        with server.client() as client:
            client.sadd(keys.TAGS, self._tag)
            self._full = Filler(client, self._wire, self._me.store, TENANT)
            self._full.fill()

    def use(self) -> None:
        """In an order in which each finds much to do."""
        self._operators()
        self._processes()
        self._checks()
        self._loops()

    def _call(self, call: Call) -> Any:
        return self._run(answer(call))

    def _lease(self, tag: bytes, task: bytes) -> Lease:
        taken = self._run(leases.take(leases.task_key(tag, task), self._me.process, 60_000))
        assert taken is not None
        return taken

    def _operators(self) -> None:
        tag = self._tag
        self._run(namespaces.tags(b"0", 64))
        record = self._run(namespaces.describe(tag))
        assert record is not None
        assert (record.pages, record.stores) == (PAGES + MEDIA - 1, namespaces.MAX_STORES)
        look = self._run(census.look(record))
        assert len(look.records) == namespaces.MAX_STORES - 1
        assert not look.claims.whole
        for pages in (MISSING[: explain.MAX_PAGES], PRESENT[: explain.MAX_PAGES]):
            assert len(self._run(explain.explain(tag, pages)) or ()) == explain.MAX_PAGES
        whole = [digest(n) for n in range(locate.MAX_PAGES)]
        self._run(locate.Locator().prefixes(tag, whole))
        assert self._run(pins.unpin(tag, PRESENT)) == MAX_KEYS
        assert self._run(pins.pin(tag, PRESENT, 60)) == pins.MAX_PINS
        assert self._run(pins.pin(tag, MISSING, 60)) is None
        assert len(self._run(pins.pinned(tag))) == pins.MAX_PINS
        self._run(processes.of_namespace(record))
        self._run(processes.order(tag, self._full.processes, "read"))
        self._run(processes.order(tag, self._full.processes[:100], None, "read"))
        self._run(processes.claims_held(record, look.stores[:100]))
        self._run(tenants.write("tenant", tenants.Settings(1 << 40, 5000, "read")))
        self._run(tenants.read("tenant"))
        snapshot = Snapshot(tag)
        self._run(snapshot.begin())
        for _ in range(20):
            self._run(snapshot.step())
        with self._server.client() as client:
            first, _ = client.xrange(b"e" + tag, count=1)[0]
        heard = self._run(events.listen(tag, first.decode()))
        assert heard is not None
        assert heard.events

    def _processes(self) -> None:
        wire, media = self._wire, [self._me.medium, os.urandom(16)]
        for pages, prefix in ((PRESENT, False), (MISSING, False), (PRESENT, True)):
            self._call(wire.lookup(0, pages, media, prefix, 600))
        token = os.urandom(8)
        self._call(wire.claim(0, MISSING, token, 60_000))
        self._call(wire.abort(0, MISSING[:500], token))
        where = [Location(self._me.store, 0, n, 4096, n, 7).pack() for n in range(MAX_KEYS)]
        parents = [ROOT, *MISSING]
        entries = [PageEntry(MISSING[n], parents[n], where[n]) for n in range(MAX_KEYS)]
        self._call(wire.publish(0, 1, entries, claimed=True))
        self._call(wire.report(0, MISSING[5], where[5], MISSING[4]))
        self._call(wire.remove(0, 2, entries[::-1], [10_000] * MAX_KEYS))
        counters = dict.fromkeys(sorted(figures.names())[: figures.MAX_COUNTERS], 1)
        self._call(wire.figures(Report(1, counters, Gauges())))
        self._call(wire.beat(0, 600_000, hits=5))

    def _checks(self) -> None:
        place = audit.Place(self._tag, 0, self._wire.medium)
        for family in (b"y", b"s", b"n", b"c"):
            key = family + self._tag + (b"0." + self._wire.medium) * (family == b"c")
            cursor = b"0"
            while (cursor := self._run(audit.part(key, cursor)).after) != b"0":
                pass
        there = list(zip(PRESENT, self._run(audit.seen(place, PRESENT)), strict=True))
        assert self._run(audit.discard(place, there)) == MAX_KEYS
        self._run(audit.purge(place, 7))
        part = checks.Part(0, clean=False, found=dict.fromkeys(map(str, range(40)), 7), repaired=0)
        media = [b"m%07d" % n for n in range(checks.MAX_PARTS)]
        self._run(checks.keep(self._tag, dict.fromkeys(media, part), media, 0))

    def _loops(self) -> None:
        tag, run = self._tag, self._run
        record = run(namespaces.describe(tag))
        assert record is not None
        look = run(census.look(record))
        told = [popularity.Told(tag, process, kept) for process, kept in look.records.items()]
        lease = self._lease(TENANT, b"popularity")
        for since_s in (5, 3600):
            run(popularity.merge(lease, TENANT, told, since_s))
        run(popularity.hottest(TENANT, popularity.MOST))
        run(history.add(lease, TENANT, history.Sample(0.0, look.sums)))
        sums = {keys.tag(os.urandom(9)): look.sums for _ in range(64)}
        run(ledger.keep(lease, TENANT, ledger.Ledger(), sums, ()))
        assert len(run(ledger.read(TENANT)).known) == 64
        run(history.curve(TENANT, 3600, history.MAX_POINTS))
        run(census.clock())
        run(lease.renew(1000))
        run(lease.release())
        run(quotas.kept_by_stores(record))
        shares = dict.fromkeys((store.store for store in look.stores), 1 << 40)
        settings = tenants.Settings(1 << 50, 5000, "read")
        run(quotas.settle(self._lease(tag, b"settle"), record, settings, shares))
        self._call(self._wire.leave())
        self._sweep()
        self._call(self._wire.clear())
        self._sweep()  # what was cleared
        self._sweep(private_ms=-1000, shared_ms=-1000)  # as if all had been left long ago
        run(pins.unpin(tag, []))
        forgetting = self._lease(tag, b"settle")
        run(forgetting.act("forget", [f + tag for f in (b"n", *_FAMILIES)], (b"1", b"-1000")))

    def _sweep(self, **limits: int) -> None:
        sweep = Sweep(self._tag, **limits)
        while self._run(sweep.step()):
            pass
        if sweep.lease is not None:
            self._run(sweep.lease.release())


@pytest.fixture
def redis(own_server: Server) -> Iterator[Redis]:
    with Redis(own_server.url) as made:
        yield made


def every_script() -> set[str]:
    files = {path.stem for path in Path(str(scripts.__path__[0])).glob("*.lua")}
    return files - {part for parts in scripts._BEFORE.values() for part in parts}


@pytest.fixture
def called(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The scripts that were asked for."""
    names: set[str] = set()
    prepared = scripts._prepared

    def noted(name: str, keys: int) -> Any:
        names.add(name)
        return prepared(name, keys)

    monkeypatch.setattr(scripts, "_prepared", noted)
    return names


def slow_calls(server: Server) -> dict[str, int]:
    """Microseconds of the longest call of each script that took long enough to be noted."""
    names = {scripts.script(name).sha: name for name in every_script()}
    found: dict[str, int] = {}
    with server.client() as client:
        for entry in client.slowlog_get(NOTED):
            words = entry["command"].split(b" ")
            if words[0].upper() == b"EVALSHA":
                name = names[words[1]]
                found[name] = max(found.get(name, 0), entry["duration"])
    return found


def test_no_script_takes_longer_than_some_ten_milliseconds(
    own_server: Server, redis: Redis, called: set[str]
) -> None:
    always = every_script()
    for _ in range(TRIES):  # now and then the server waits for a processor
        with own_server.client() as client:
            client.flushall()
            namespace = Namespace(redis, own_server)
            client.config_set("slowlog-max-len", NOTED)
            client.config_set("slowlog-log-slower-than", LONGEST_US)
            client.slowlog_reset()
        namespace.use()
        assert called >= every_script(), "each script is called here"
        slow = slow_calls(own_server)
        always &= slow.keys()
        if not always:
            return
    assert not always, slow
