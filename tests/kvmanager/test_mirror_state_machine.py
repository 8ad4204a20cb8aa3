"""A mirror made of a snapshot and events is what the registry holds, after any order of calls."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from hicache_backends.storage import PageEntry
from kvmanager import keys
from kvmanager.connection import Pool
from kvmanager.control.events import listen
from kvmanager.control.namespaces import describe
from kvmanager.control.snapshot import Snapshot
from kvmanager.control.sweep import Sweep
from kvmanager.control.walk import Walk
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.options import RegistryOptions
from kvmanager.service.event_messages import of_event, of_heading, of_pages
from tests.kvmanager.machines import run
from tests.kvmanager.members import NAMESPACE, Cluster, Store, soon
from tests.kvmanager.mirror import Mirror
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)
STORES = 3
OWN_MEDIUM = 2
"""The third store has a medium of its own; the other two share one."""
BATCHES = 24
OPTIONS = RegistryOptions(timeout_ms=5000, heartbeat_ms=60_000, ttl_ms=180_000)
BATCH = [hashlib.blake2b(b"%d" % n, digest_size=16).digest() for n in range(300 * BATCHES)]

some_store = st.integers(0, STORES - 1)
some_pages = st.integers(0, 1).map(lambda n: BATCH[300 * n : 300 * n + 300])


class Router:
    """Mirrors what is stored, a step of its snapshot or a call of its events at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.mirror = Mirror()
        self._snapshot: Snapshot | None = None
        self._began = ""

    def begin(self) -> None:
        self._snapshot = Snapshot(TAG)
        heading = self._driver.run(self._snapshot.begin(), soon())
        assert heading is not None
        self._apply(of_heading(heading))
        self._began = heading.position

    def step(self) -> None:
        """A few buckets, or some events."""
        if self._snapshot is not None:
            if self._snapshot.done:
                self._snapshot, self.mirror.sequence = None, self._began
            else:
                self._apply(of_pages(self._driver.run(self._snapshot.step(), soon())))
        else:
            self.listen()

    def listen(self) -> bool:
        """Whether there is more to hear."""
        heard = self._driver.run(listen(TAG, self.mirror.sequence, 3), soon())
        if heard is None or heard.lost:
            self.begin()
            return True
        for event in heard.events:
            self._apply(of_event(event))
        return heard.more

    def catch_up(self) -> None:
        self._finish()
        while self.listen():
            self._finish()

    def _finish(self) -> None:
        while self._snapshot is not None:
            self.step()

    def _apply(self, message: bytes) -> None:
        fields = dict(line.split(": ", 1) for line in message.decode().strip().split("\n"))
        self.mirror.apply((fields["event"], fields.get("id", ""), json.loads(fields["data"])))


class MirrorMachine(RuleBasedStateMachine):
    """The registry is changed in every way there is while a router listens."""

    server: Server

    @initialize()
    def join(self) -> None:
        with self.server.client() as client:
            client.flushall()
        self.driver = Driver(Pool(Endpoint.parse(self.server.url), 1000), OPTIONS)
        self.cluster = Cluster(self.server.url)
        media = [self.cluster.medium, self.cluster.medium, os.urandom(16)]
        self.stores = [
            self.cluster.store(medium=medium, options=OPTIONS, start=False) for medium in media
        ]
        self._few_buckets(0)
        self.router = Router(self.driver)
        self.router.begin()

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            for store in self.stores:
                store.registry.close(500)
            self.driver.pool.clear()

    @rule(n=some_store, pages=some_pages)
    def publish(self, n: int, pages: list[bytes]) -> None:
        store = self.stores[n]
        store.registry.publish(store.chain(pages), b"", soon())

    @rule(n=some_store, pages=some_pages, part=st.integers(1, 300), evict=st.booleans())
    def remove(self, n: int, pages: list[bytes], part: int, evict: bool) -> None:
        entries = [e for e in self._entries(n, pages[:part]) if e.location]
        idle = [3_600_000] * len(entries) if evict else None
        self.stores[n].registry.remove(entries, soon(), touched_ms=idle)

    @rule(n=some_store, pages=some_pages)
    def report(self, n: int, pages: list[bytes]) -> None:
        entry = self._entries(n, pages[:1])[0]
        self.stores[n].registry.report_bad(entry.digest, entry.location or b"x" * 44, soon())

    @rule(n=some_store, what=st.sampled_from(["clear", "die", "forget", "stop", "anew"]))
    def disturb(self, n: int, what: str) -> None:
        """One rule for all that makes a mirror begin anew, so that most steps are not it."""
        if what == "clear":
            self.clear(n)
        elif what == "die":
            self.die_and_come_back(n)
        elif what == "forget":
            self.forget_events()
        elif what == "stop":
            self.stop_listening()
        else:
            self.router.begin()

    def clear(self, n: int) -> None:
        self.stores[n].registry.clear_namespace(soon())
        for store in self.stores:
            self._beat(store)
        self._few_buckets(self.stores[n].registry.core.epoch)

    def die_and_come_back(self, n: int) -> None:
        """As after kill -9: nobody says anything until the process record has run out."""
        member = self.stores[n].member
        with self.server.client() as client:
            client.delete(b"r" + TAG + member.process, b"w" + TAG)
        sweep = Sweep(TAG)
        while self.driver.run(sweep.step(), soon()):
            pass
        self.router.catch_up()
        assert self.router.mirror.stores[member.store.hex()]["alive"] is False
        self._beat(self.stores[n])
        self.router.catch_up()
        assert self.router.mirror.stores[member.store.hex()]["alive"] is True

    def forget_events(self) -> None:
        with self.server.client() as client:
            client.xtrim(b"e" + TAG, maxlen=1, approximate=False)

    def stop_listening(self) -> None:
        """For longer than the lease."""
        with self.server.client() as client:
            if client.hexists(b"n" + TAG, "events_until"):
                client.hset(b"n" + TAG, "events_until", 1)

    @rule(steps=st.integers(1, 40))
    def listen(self, steps: int) -> None:
        for _ in range(steps):
            self.router.step()

    @rule()
    def compare(self) -> None:
        self.router.catch_up()
        assert self.router.mirror.pages == dict(self._held())

    def _held(self) -> Iterator[tuple[tuple[str, str], str]]:
        record = self.driver.run(describe(TAG), soon())
        assert record is not None
        for medium in record.media:
            walk = Walk(TAG, record.epoch, medium.id, 512)
            while not walk.done:
                for digest, location in self.driver.run(walk.step(), soon()).pages:
                    yield (medium.id.decode(), digest.hex()), location[:16].hex()

    def _entries(self, n: int, pages: list[bytes]) -> list[PageEntry]:
        """Where they are, whosever they are."""
        store = self.stores[n]
        found = store.lookup(pages, prefix=False)
        parents = [b"\0" * 16, *pages]
        return list(map(PageEntry, pages, parents, found.locations))

    def _beat(self, store: Store) -> None:
        store.registry.driver.run(store.registry.core.beat(), soon())

    def _few_buckets(self, epoch: int) -> None:
        """So that pages begin to move to other buckets soon."""
        with self.server.client() as client:
            for medium in {store.member.medium for store in self.stores}:
                field = b"f:%d.%b" % (epoch, keys.medium_id(medium))
                client.hset(b"n" + TAG, field.decode("latin-1"), 256)


def test_a_mirror_is_what_the_registry_holds(server: Server) -> None:
    run(MirrorMachine, server, examples=25, steps=40)


@pytest.mark.slow
def test_a_mirror_is_what_the_registry_holds_for_long(server: Server) -> None:
    run(MirrorMachine, server, examples=100, steps=60)


def test_buckets_that_are_split_under_a_snapshot_hide_no_page(server: Server) -> None:
    machine = type("Machine", (MirrorMachine,), {"server": server})()
    machine.join()
    try:
        for n in range(0, BATCHES, 2):
            machine.publish(0, BATCH[300 * n : 300 * n + 300])
        machine.router.begin()
        machine.listen(2)
        for n in range(1, BATCHES, 2):
            machine.publish(1, BATCH[300 * n : 300 * n + 300])
            machine.listen(1)
        machine.compare()
        assert len(machine.router.mirror.pages) == len(BATCH)
        medium = keys.medium_id(machine.cluster.medium)
        with server.client() as client:
            assert int(client.hget(b"n" + TAG, b"f:0." + medium) or 0) > 300
    finally:
        machine.teardown()
