"""Whatever happens in whatever order, what living stores published is found, or they are told."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import redis
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

from hicache_backends.errors import RegistryError
from kvmanager import keys
from kvmanager.control import processes
from kvmanager.control.leases import LeaseLost
from kvmanager.control.sweep import ORDER_MS, Sweep
from kvmanager.service.loops.sweeping import _FAMILIES
from tests.kvmanager.machines import run
from tests.kvmanager.reporters import Redis
from tests.kvmanager.servers import Server
from tests.kvmanager.sessions import (
    LEASE,
    NAMES,
    ORDERS,
    SEQUENCES,
    STORES,
    TAG,
    Session,
    fields,
    pass_time,
    swept,
)

OWN_A, OWN_B, COMMON, SHARED = range(4)
PLACES = ((0, OWN_A), (0, OWN_B), (1, COMMON), (2, SHARED), (2, COMMON), (3, SHARED))
"""Of each session its process and its medium; all media but the last are private."""
MINUTE_S, HOUR_S = 60, 3600
STALE_S = 60
"""An order may bear a time that is so much too old."""
FORGET_MS = 3_600_000

some_session = st.integers(0, len(PLACES) - 1)
some_sweep = st.integers(0, 1)


class SweepMachine(RuleBasedStateMachine):
    """Real scripts, real sessions, and stamps that are made older as time passes."""

    server: Server

    @initialize()
    def begin(self) -> None:
        self.client: redis.Redis = self.server.client()
        self.client.flushall()
        self.carrier = Redis(self.server.url)
        media, uuids = [os.urandom(16) for _ in range(4)], [os.urandom(16) for _ in range(4)]
        self.sessions = [
            Session(self.carrier, uuids[process], media[place], shared=place == SHARED)
            for process, place in PLACES
        ]
        for session in self.sessions[:4]:
            session.join()
            session.publish(3)
        swept(self.carrier)
        self.sweeps: list[Sweep | None] = [None, None]
        self.now_s = 0  # since the beginning
        self.away = False  # the registry is back, and nobody's absence counts yet
        self.obeyed_s: dict[bytes, int] = {}  # orders, and when their processes were last heard
        for n in range(len(PLACES)):
            self.order(n)

    def teardown(self) -> None:
        if hasattr(self, "carrier"):
            try:
                self._all_come_back()
                self._all_go()
            finally:
                self.carrier.__exit__(None, None, None)
                self.client.close()

    @rule(n=some_session)
    def beat(self, n: int) -> None:
        session = self.sessions[n]
        dropped = self._is_dropped(session)
        try:
            mode = session.beat().mode
        except RegistryError:
            assert dropped, "only what is being swept keeps anybody waiting"
            return
        process = session.member.process
        if process in self.obeyed_s:
            if self.now_s - self.obeyed_s[process] < ORDER_MS / 1000 - STALE_S:
                assert mode == "off"
            if mode == "off":
                self.obeyed_s[process] = self.now_s

    @rule(n=some_session)
    def catch_up(self, n: int) -> None:
        self.beat(n)
        if not self._is_dropped(self.sessions[n]):
            try:
                self.sessions[n].catch_up()
            except RegistryError:
                assert not self._knows(self.sessions[n])

    @rule(n=some_session, count=st.integers(1, 3))
    def publish(self, n: int, count: int) -> None:
        self.sessions[n].publish(count)

    @rule(n=some_session)
    def order(self, n: int) -> None:
        process = self.sessions[n].member.process
        self.carrier.run(processes.order(TAG, [process], "off"))
        self.obeyed_s[process] = self.now_s

    @rule(n=some_session)
    def miss_heartbeats(self, n: int) -> None:
        self.client.delete(b"r" + TAG + self.sessions[n].member.process)

    @rule(
        seconds=st.sampled_from([MINUTE_S, 40 * MINUTE_S, 90 * MINUTE_S, 90 * MINUTE_S]),
        looked=st.sampled_from([True, True, False]),
        heard=st.sets(some_session, max_size=3),
    )
    def wait(self, seconds: int, looked: bool, heard: set[int]) -> None:
        """Nobody was heard for so long; then some are."""
        pass_time(self.client, seconds, looked=looked)
        self.now_s += seconds
        self.away = seconds > 30 * MINUTE_S and not looked
        for n in sorted(heard):
            self.beat(n)

    @rule(k=some_sweep, ended=st.booleans())
    def begin_sweep(self, k: int, ended: bool) -> None:
        """By any session, or by a service; `ended`: the lease of whoever swept before."""
        if ended:
            self.client.delete(LEASE)
        self.sweeps[k] = Sweep(TAG)

    @rule(k=some_sweep, steps=st.sampled_from([1, 4, 9, 10, 11, 12, 14, 1000]))
    def go_on(self, k: int, steps: int) -> None:
        sweep = self.sweeps[k]
        while sweep is not None and steps:
            with self._sparing_the_living():
                more = self.carrier.run(sweep.step())
            steps = steps - 1 if more else 0

    @rule(k=some_sweep, ended=st.booleans())
    def sweep(self, k: int, ended: bool) -> None:
        """All of a pass, whatever the other one is doing."""
        self.begin_sweep(k, ended)
        self.go_on(k, 1000)

    @rule(k=some_sweep, steps=st.integers(8, 40), ended=st.booleans())
    def be_overtaken(self, k: int, steps: int, ended: bool) -> None:
        """Interrupted anywhere; another ends what was begun, all come back, and it goes on."""
        self.begin_sweep(k, ended=True)
        self.go_on(k, steps)
        self.sweep(1 - k, ended)
        for n in range(len(PLACES)):
            self.catch_up(n)
        self.go_on(k, 1000)

    @rule(k=some_sweep)
    def forget(self, k: int) -> None:
        sweep = self.sweeps[k]
        if sweep is not None and sweep.empty and sweep.lease is not None:
            with self._sparing_the_living():
                self._forget(sweep)

    def _forget(self, sweep: Sweep, after_ms: int = FORGET_MS) -> None:
        own = [family + TAG for family in (b"n", *_FAMILIES)]
        assert sweep.lease is not None
        try:
            if self.carrier.run(sweep.lease.act("forget", own, (b"%d" % after_ms,))):
                self.obeyed_s.clear()
        except LeaseLost:
            pass

    @invariant()
    def whoever_is_in_step_is_found(self) -> None:
        for session in getattr(self, "sessions", []):
            if session.core.in_step and self._knows(session):
                assert session.found() == len(session.pages)

    def _knows(self, session: Session) -> bool:
        """Whether the registry thinks that it has all of a store."""
        sequence = self.client.hget(SEQUENCES, session.member.store)
        return sequence == b"%d" % session.core.sequence

    def _is_dropped(self, session: Session) -> bool:
        return session.medium_id in keys_of(self.client.hget(NAMES, "dropping"))

    @contextmanager
    def _sparing_the_living(self) -> Iterator[None]:
        """Of a process that is there, or that a registry which was away can't have seen yet."""
        before = self._spared()
        yield
        assert before <= self._spared()

    def _spared(self) -> set[tuple[bytes, bytes]]:
        media = keys_of(self.client.hget(NAMES, "media"))
        known = [fields(self.client, key) for key in (STORES, SEQUENCES, ORDERS)]
        found = set()
        for session in self.sessions:
            process, store = session.member.process, session.member.store
            if not self.away and not self.client.exists(b"r" + TAG + process):
                continue
            for name, there in zip(b"sqo", known, strict=True):
                who = process if name == ord("o") else store
                if who in there:
                    found.add((bytes([name]), who))
            if store in known[0] and session.medium_id in media:
                found.add((b"m", session.medium_id))
        return found

    def _all_come_back(self) -> None:
        swept(self.carrier)
        for session in self.sessions:
            session.join()
        for session in self.sessions:
            assert session.core.in_step
            assert session.found() == len(session.pages)

    def _all_go(self) -> None:
        """Nothing of them is left in the end."""
        pass_time(self.client, 8 * 24 * HOUR_S, looked=True)
        sweep = swept(self.carrier)
        assert sweep.empty
        self._forget(sweep)
        assert {key[:1] for key in self.client.scan_iter()} <= {b"g", b"w"}


def keys_of(joined: bytes | str | None) -> list[bytes]:
    """The media in such a field."""
    raw, size = joined or b"", keys.MEDIUM_ID_BYTES
    assert isinstance(raw, bytes)
    return [raw[i : i + size] for i in range(0, len(raw), size)]


def test_nothing_of_a_living_process_is_swept(server: Server) -> None:
    run(SweepMachine, server, examples=30, steps=40)


@pytest.mark.slow
def test_nothing_of_a_living_process_is_swept_in_many_orders_of_steps(server: Server) -> None:
    run(SweepMachine, server, examples=200, steps=50)
