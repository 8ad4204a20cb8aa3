"""The registry against a model in plain Python, over any order of calls by several stores."""

from __future__ import annotations

import os
from dataclasses import dataclass

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from hicache_backends.outcomes import Reason
from hicache_backends.storage import UNKNOWN, PageEntry
from kvmanager import keys
from kvmanager.model import Claim, Published, Removal, State
from kvmanager.options import RegistryOptions
from tests.kvmanager.machines import run
from tests.kvmanager.members import NAMESPACE, Cluster, Store, soon
from tests.kvmanager.servers import Server

STORES = 3
OWN_MEDIUM = 2
"""The third store has a medium of its own; the other two share one."""
PAGES = [bytes((n, n)) * 8 for n in range(1, 9)]
OPTIONS = RegistryOptions(timeout_ms=5000, heartbeat_ms=60_000, ttl_ms=180_000)
LONG_AGO_MS = 3_600_000

some_pages = st.lists(st.sampled_from(PAGES), min_size=1, max_size=5, unique=True)
some_parent = st.sampled_from([UNKNOWN, *PAGES])
some_idle_ms = st.sampled_from([0, LONG_AGO_MS])
some_store = st.integers(0, STORES - 1)


@dataclass
class Page:
    """What the model knows of a stored page."""

    location: bytes
    counted: bool  # among the children of its parent
    children: int
    read: bool = False


class Medium:
    """The model of one medium."""

    def __init__(self) -> None:
        self.pages: dict[bytes, Page] = {}
        self.claims: dict[bytes, bytes] = {}
        self.reported: dict[bytes, bytes] = {}  # locations of pages still counted in their parent

    def publish(self, entries: list[PageEntry], store: bytes) -> list[Published]:
        answers = []
        before: Page | None = None
        expected = False  # the page before was new and counts this one already
        for n, entry in enumerate(entries):
            follows = n > 0 and entry.parent == entries[n - 1].digest
            parent = before if follows else self.pages.get(entry.parent)
            page = self.pages.get(entry.digest)
            new = page is None
            if page is None:
                has_next = n + 1 < len(entries) and entries[n + 1].parent == entry.digest
                counted = self.reported.pop(entry.digest, None) is not None
                page = Page(entry.location, counted, int(has_next))
            elif page.location[:16] == store:
                page.location = entry.location
            if parent is not None and not page.counted:
                page.counted = True
                parent.children += not (follows and expected)
            self.pages[entry.digest] = page
            same = page.location == entry.location
            answers.append(Published.OK if same else Published.DUPLICATE)
            before, expected = page, new
        return answers

    def remove(self, entry: PageEntry) -> None:
        page = self.pages.get(entry.digest)
        if page is not None and page.location == entry.location:
            del self.pages[entry.digest]
            if page.counted:
                self._uncount(entry.parent)
        elif self.reported.get(entry.digest) == entry.location:
            del self.reported[entry.digest]
            self._uncount(entry.parent)

    def report(self, entry: PageEntry) -> None:
        page = self.pages.get(entry.digest)
        if page is not None and page.location == entry.location:
            if page.counted and entry.parent == UNKNOWN:
                self.reported[entry.digest] = entry.location
                del self.pages[entry.digest]
            else:
                self.remove(entry)

    def where(self, digest: bytes) -> bytes | None:
        """Where a page is, or was when it was reported."""
        page = self.pages.get(digest)
        return self.reported.get(digest) if page is None else page.location

    def _uncount(self, digest: bytes) -> None:
        parent = self.pages.get(digest)
        if parent is not None:
            parent.children = max(0, parent.children - 1)

    def evict(self, entry: PageEntry, idle_ms: int) -> Removal:
        page = self.pages.get(entry.digest)
        if page is not None and page.location == entry.location:
            if page.children:
                return Removal.PARENT
            if page.read and idle_ms:
                return Removal.TOUCHED
        self.remove(entry)
        return Removal.REMOVED


class RegistryMachine(RuleBasedStateMachine):
    """Every rule carries a call out on both sides and compares the answers."""

    server: Server

    @initialize()
    def join(self) -> None:
        with self.server.client() as client:
            client.flushall()
        self.cluster = Cluster(self.server.url)
        media = [self.cluster.medium, self.cluster.medium, os.urandom(16)]
        self.stores = [
            self.cluster.store(medium=medium, options=OPTIONS, start=False) for medium in media
        ]
        for store in self.stores:
            store.start()
        for store in self.stores:
            store.settled()
        self.media = [Medium(), Medium()]
        self.tokens: list[bytes] = [b""] * STORES

    def teardown(self) -> None:
        if hasattr(self, "cluster"):
            for store in self.cluster.stores:
                store.registry.close(500)

    @rule(n=some_store, asked=some_pages)
    def claim(self, n: int, asked: list[bytes]) -> None:
        store, medium = self._at(n)
        token, answers = store.registry.claim(asked, soon(60_000))
        expected = []
        for digest in asked:
            if digest in medium.pages:
                expected.append(Claim.STORED)
            elif digest in medium.claims:
                expected.append(Claim.ELSEWHERE)
            else:
                expected.append(Claim.GRANTED)
                medium.claims[digest] = token
        assert answers == expected
        self.tokens[n] = token

    @rule(n=some_store, asked=some_pages)
    def abort(self, n: int, asked: list[bytes]) -> None:
        store, medium = self._at(n)
        store.registry.abort(asked, self.tokens[n], soon())
        for digest in asked:
            if medium.claims.get(digest) == self.tokens[n]:
                del medium.claims[digest]

    @rule(n=some_store)
    def expire_claims(self, n: int) -> None:
        """What Redis does when their time has come."""
        store, medium = self._at(n)
        of_medium = keys.medium_id(store.member.medium)
        with self.server.client() as client:
            client.delete(b"c%b0.%b" % (keys.tag(NAMESPACE.fingerprint), of_medium))
        medium.claims.clear()

    @rule(n=some_store, asked=some_pages, told=st.booleans(), claimed=st.booleans())
    def publish(self, n: int, asked: list[bytes], told: bool, claimed: bool) -> None:
        store, medium = self._at(n)
        first = PAGES[-1] if asked[0] != PAGES[-1] else UNKNOWN  # no page is its own parent
        above = [first, *asked[:-1]] if told else [UNKNOWN] * len(asked)
        entries = [store.entry(page, parent) for page, parent in zip(asked, above, strict=True)]
        answers = store.registry.publish(entries, b"8 bytes!" if claimed else b"", soon())
        assert answers == medium.publish(entries, store.member.store)
        for digest in asked if claimed else []:
            medium.claims.pop(digest, None)

    @rule(n=some_store, asked=some_pages, parent=some_parent)
    def remove(self, n: int, asked: list[bytes], parent: bytes) -> None:
        store, medium = self._at(n)
        entries = self._entries(n, asked, parent)
        assert store.registry.remove(entries, soon()) == [Removal.REMOVED] * len(entries)
        for entry in entries:
            medium.remove(entry)

    @rule(n=some_store, asked=some_pages, parent=some_parent, idle_ms=some_idle_ms)
    def evict(self, n: int, asked: list[bytes], parent: bytes, idle_ms: int) -> None:
        store, medium = self._at(n)
        entries = self._entries(n, asked, parent)
        answers = store.registry.remove(entries, soon(), touched_ms=[idle_ms] * len(entries))
        assert answers == [medium.evict(entry, idle_ms) for entry in entries]

    @rule(n=some_store, asked=some_pages, parent=some_parent)
    def report(self, n: int, asked: list[bytes], parent: bytes) -> None:
        store, medium = self._at(n)
        (entry,) = self._entries(n, asked[:1], parent)
        store.registry.report_bad(entry.digest, entry.location, soon(), parent=parent)
        medium.report(entry)

    @rule(n=some_store, asked=some_pages, prefix=st.booleans())
    def lookup(self, n: int, asked: list[bytes], prefix: bool) -> None:
        store, medium = self._at(n)
        found = store.lookup(asked, prefix=prefix)
        stop: Reason | None = None
        for digest, location, reason in zip(asked, found.locations, found.reasons, strict=True):
            page = medium.pages.get(digest)
            if stop is not None:
                assert (location, reason) == (b"", stop)
            elif page is not None:
                assert (location, reason) == (page.location, None)
                page.read = True
            else:
                assert (location, reason) == (b"", self._why(n, digest))
                stop = reason if prefix else None

    @rule()
    def forget_scripts(self) -> None:
        with self.server.client() as client:
            client.script_flush()

    @invariant()
    def the_registry_is_in_step(self) -> None:
        if hasattr(self, "stores"):
            assert all(store.registry.state is State.UP for store in self.stores)

    def _at(self, n: int) -> tuple[Store, Medium]:
        return self.stores[n], self.media[n == OWN_MEDIUM]

    def _why(self, n: int, digest: bytes) -> Reason:
        here, there = self._at(n)[1], self.media[n != OWN_MEDIUM]
        if digest in here.claims:
            return Reason.BEING_WRITTEN
        return Reason.OTHER_HOST if digest in there.pages else Reason.NEVER_WRITTEN

    def _entries(self, n: int, asked: list[bytes], parent: bytes) -> list[PageEntry]:
        """Pages where they are now, whosever they are, or at a place where they never were."""
        store, medium = self._at(n)
        return [
            PageEntry(digest, parent, medium.where(digest) or store.entry(digest).location)
            for digest in asked
        ]


def test_any_order_of_calls_does_what_the_model_does(server: Server) -> None:
    run(RegistryMachine, server, examples=15, steps=30)


@pytest.mark.slow
def test_many_orders_of_calls_do_what_the_model_does(server: Server) -> None:
    run(RegistryMachine, server, examples=100, steps=50)
