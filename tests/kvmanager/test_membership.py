"""Who is there, since when, and what the registry orders."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hicache_backends.errors import ConfigError, RegistryRefused, StaleEpoch
from hicache_backends.identity import Namespace
from hicache_backends.outcomes import Reason
from hicache_backends.storage import PageEntry
from kvmanager import keys
from kvmanager.connect import connect_registry
from kvmanager.model import Claim, Member, Orders, State
from kvmanager.options import RegistryOptions
from tests.kvmanager.members import (
    FAST,
    MORTAL,
    NAMESPACE,
    Cluster,
    Store,
    digests,
    eventually,
    soon,
)
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)
ROOT_DIR = Path(__file__).parents[2]


def alive(server: Server) -> list[bytes]:
    with server.client() as client:
        return [key for key in client.scan_iter() if key.startswith(b"r")]


def known_epoch(server: Server) -> bytes | None:
    with server.client() as client:
        epoch: bytes | None = client.hget(b"n" + TAG, "epoch")
        return epoch


def test_an_idle_member_stays_registered(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    seen: list[int] = []
    with server.client() as client:
        (record,) = alive(server)
        while int(store.registry.stats()["heartbeats"]) < 10:
            seen.append(client.pttl(record))
    assert min(seen) > 0
    assert store.registry.stats()["rejoined"] == 0


@pytest.mark.parametrize("beats", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_each_heartbeat_rewrites_the_record_with_its_whole_time_to_live(
    server: Server, cluster: Cluster, beats: int
) -> None:
    options = dataclasses.replace(FAST, heartbeat_ms=2, ttl_ms=60_000)
    store = cluster.store(options=options)
    (record,) = alive(server)
    with server.client() as client:
        written = client.get(record)
        last = 0
        while last < beats:
            seen = int(store.registry.stats()["heartbeats"])
            if seen > last:
                last = seen
                assert client.pttl(record) > 0.9 * 60_000
                assert client.get(record) == written


def test_a_process_that_vanishes_is_gone_after_its_time_to_live(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store(start=False, options=MORTAL)
    assert len(alive(server)) == 1
    token, _ = store.registry.claim(keys_claimed := digests(3), soon(50))
    eventually(lambda: alive(server) == [])
    other = cluster.store(options=dataclasses.replace(FAST, claim_grace_ms=1))
    eventually(lambda: other.registry.claim(keys_claimed, soon())[1] == [Claim.GRANTED] * 3)
    assert token


def test_a_writer_killed_between_claim_and_publish_blocks_nobody_for_long(
    server: Server, cluster: Cluster
) -> None:
    program = (
        "import os, sys, signal; from tests.kvmanager.members import *;"
        "from tests.kvmanager.members import FAST; import dataclasses;"
        "store = Store(sys.argv[1], medium=bytes.fromhex(sys.argv[2]),"
        " options=dataclasses.replace(FAST, claim_grace_ms=200));"
        "store.registry.claim([bytes.fromhex(sys.argv[3])], soon(100));"
        "os.kill(os.getpid(), signal.SIGKILL)"
    )
    (key,) = digests(1)
    subprocess.run(
        [sys.executable, "-c", program, server.url, cluster.medium.hex(), key.hex()],
        env={**os.environ, "PYTHONPATH": f"{ROOT_DIR}:{ROOT_DIR / 'backends'}"},
        check=False,
    )
    survivor = cluster.store()
    eventually(lambda: survivor.registry.claim([key], soon())[1] == [Claim.GRANTED])


def test_a_member_frozen_beyond_its_time_to_live_registers_again(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store()
    entries = store.chain(digests(20))
    store.write(entries)
    store.settled()
    with server.client() as client:
        client.delete(*alive(server))  # what the server does to a frozen process
    eventually(lambda: store.registry.stats()["rejoined"] == 1)
    store.settled()
    assert len(alive(server)) == 1
    assert store.lookup([entry.digest for entry in entries]).prefix == 20


def test_a_store_that_is_opened_again_is_announced(server: Server, cluster: Cluster) -> None:
    first = cluster.store()
    entries = first.chain(digests(700))
    first.write(entries[:600])
    first.registry.close()
    second = cluster.store(store=first.member.store, start=False)
    second.pages = {entry.digest: entry for entry in entries}
    assert second.registry.state is State.REBUILDING
    found = second.lookup([entry.digest for entry in entries])
    assert found.prefix == 600
    assert found.reasons[-1] is Reason.REGISTRY_REBUILDING
    second.start()
    second.settled()
    assert second.lookup([entry.digest for entry in entries]).prefix == 700


def test_another_namespace_with_the_same_tag_is_refused(server: Server) -> None:
    with server.client() as client:
        client.hset(
            b"n" + TAG,
            mapping={"fingerprint": b"x" * 32, "encoding": "other", "schema": 1, "epoch": 0},
        )
    with pytest.raises(RegistryRefused, match="another namespace"):
        Cluster(server.url).store()


@pytest.mark.parametrize(("schema", "taken"), [(0, True), (1, True), (2, True), (3, False)])
def test_neighbouring_schemas_work_together_and_others_are_refused(
    server: Server, cluster: Cluster, schema: int, taken: bool
) -> None:
    cluster.store()
    with server.client() as client:
        client.hset(b"n" + TAG, "schema", schema)
    if taken:
        cluster.store()
    else:
        with pytest.raises(RegistryRefused, match=f"schema {schema}"):
            cluster.store()


def test_clearing_a_namespace_voids_what_was_there_and_its_owners_obey(
    cluster: Cluster,
) -> None:
    stores = [cluster.store() for _ in range(3)]
    old = digests(5)
    stores[0].write(stores[0].chain(old))
    for store in stores:
        store.settled()
    assert stores[1].registry.clear_namespace(soon()) == 1
    with contextlib.suppress(StaleEpoch):
        assert stores[0].lookup(old).prefix == 0  # its heartbeat has told it
    for store in stores:
        eventually(lambda store=store: any(o.clear for o in store.orders))  # type: ignore[misc]  # bound now
        store.settled()
        assert store.pages == {}
        assert store.lookup(old).prefix == 0
    new = stores[2].chain(old)
    stores[2].write(new)
    assert stores[0].lookup(old).locations == [entry.location for entry in new]


def test_a_call_of_an_older_epoch_fails_once_and_then_goes_on(cluster: Cluster) -> None:
    writer, admin = cluster.store(start=False), cluster.store(start=False)
    keys_old, keys_new = digests(3), digests(3)
    writer.write(writer.chain(keys_old))
    admin.registry.clear_namespace(soon())
    with pytest.raises(StaleEpoch):
        writer.write(writer.chain(keys_old))
    writer.write(writer.chain(keys_new))
    assert writer.lookup(keys_old).prefix == 0
    assert writer.lookup(keys_new).prefix == 3


def test_a_store_that_missed_a_clear_is_told_when_it_returns(cluster: Cluster) -> None:
    first, admin = cluster.store(), cluster.store()
    entries = first.chain(digests(4))
    first.write(entries)
    first.settled()
    first.registry.close()
    admin.registry.clear_namespace(soon())
    second = cluster.store(store=first.member.store, start=False)
    second.pages = {entry.digest: entry for entry in entries}
    second.start()
    second.settled()
    assert second.orders[0].clear
    assert second.lookup([entry.digest for entry in entries]).prefix == 0
    third = cluster.store(store=first.member.store)
    third.settled()
    assert not third.orders[0].clear


def left_after_a_clear(cluster: Cluster) -> tuple[Store, Store, list[PageEntry]]:
    """A store that stays, one that has left, and the pages that this wrote after a clear."""
    other, away = cluster.store(), cluster.store()
    other.registry.clear_namespace(soon())
    eventually(lambda: any(o.clear for o in away.orders))
    away.settled()
    entries = away.chain(digests(4))
    away.write(entries)
    away.registry.close()
    return other, away, entries


@pytest.mark.parametrize("returns_first", [True, False])
def test_a_store_that_the_registry_has_forgotten_keeps_its_pages(
    server: Server, cluster: Cluster, returns_first: bool
) -> None:
    other, away, entries = left_after_a_clear(cluster)
    other.settled()
    if returns_first:  # the epoch is brought back after it
        other.registry.close()
    with server.client() as client:
        client.flushall()
    if not returns_first:
        eventually(lambda: known_epoch(server) == b"1")
    again = cluster.store(store=away.member.store, start=False)
    again.pages = {entry.digest: entry for entry in entries}
    again.start()
    again.settled()
    if returns_first:
        with server.client() as client:
            client.hset(b"n" + TAG, "epoch", 1)  # as a member does that had obeyed it
        eventually(lambda: any(o.epoch == 1 for o in again.orders))
        again.settled()
    assert not any(o.clear for o in again.orders)
    assert again.lookup([entry.digest for entry in entries]).prefix == 4
    again.registry.clear_namespace(soon())
    eventually(lambda: again.orders[-1].clear)


def test_a_store_swept_long_after_its_process_keeps_its_pages(
    server: Server, cluster: Cluster
) -> None:
    _, away, entries = left_after_a_clear(cluster)
    with server.client() as client:
        client.hdel(b"s" + TAG, away.member.store)
        client.hdel(b"q" + TAG, away.member.store)
    again = cluster.store(store=away.member.store, start=False)
    again.pages = {entry.digest: entry for entry in entries}
    again.start()
    again.settled()
    assert not any(o.clear for o in again.orders)
    assert again.lookup([entry.digest for entry in entries]).prefix == 4


def test_a_visitor_that_clears_leaves_nothing_behind(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    with server.client() as client:
        before = client.hget(b"n" + TAG, "media"), client.hkeys(b"s" + TAG)
        for n in range(1, 4):
            visitor = Member(os.urandom(16), "", "", store=b"", medium=b"")
            registry = connect_registry(server.url, NAMESPACE, visitor, options=FAST)
            assert registry.state is State.UP
            assert registry.clear_namespace(soon()) == n
            registry.close()
        store.settled()
        assert (client.hget(b"n" + TAG, "media"), client.hkeys(b"s" + TAG)) == before
        assert client.hkeys(b"q" + TAG) == [store.member.store]
    assert len(alive(server)) == 1


def test_orders_of_the_namespace_reach_every_member(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    with server.client() as client:
        client.hset(b"n" + TAG, mapping={"mode": "read"})
    eventually(lambda: Orders(0, "read") in store.orders)


def test_an_owner_that_fails_at_its_orders_keeps_its_heartbeat(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store(start=False)
    called = threading.Event()
    calls = []

    def fail(orders: Orders) -> None:
        calls.append(orders)
        if len(calls) == 3:
            called.set()
        raise ZeroDivisionError

    store.registry.start(fail)
    assert called.wait(5)
    assert len(alive(server)) == 1


@pytest.mark.parametrize("offset_s", [3600, -3600])
def test_a_member_with_a_wrong_clock_changes_nothing(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, offset_s: int
) -> None:
    right = cluster.store()
    claimed = digests(2)
    right.registry.claim(claimed, soon(60_000))
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() + offset_s)
    wrong = cluster.store()
    entries = wrong.chain(digests(3))
    wrong.write(entries)
    assert wrong.registry.claim(claimed, soon())[1] == [Claim.ELSEWHERE] * 2
    keys_written = [entry.digest for entry in entries]
    right.lookup(keys_written)
    removed = wrong.registry.remove(entries[::-1], soon(), touched_ms=[60_000] * 3)
    assert [r.name for r in removed] == ["TOUCHED", "PARENT", "PARENT"]
    wrong.settled()
    assert len(alive(server)) == 2
    with server.client() as client:
        assert all(0 < client.pttl(record) <= FAST.ttl_ms for record in alive(server))


def test_a_time_to_live_below_three_heartbeats_is_refused() -> None:
    with pytest.raises(ConfigError, match="ttl_ms"):
        RegistryOptions(heartbeat_ms=2000, ttl_ms=5999)
    RegistryOptions(heartbeat_ms=2000, ttl_ms=6000)
    for wrong in ({"timeout_ms": 0.0}, {"journal_entries": 0}, {"announce_pages_per_s": -1.0}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            dataclasses.replace(RegistryOptions(), **wrong)


def test_an_eviction_policy_that_drops_pages_is_warned_about(
    server: Server, cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.store()
    assert "maxmemory-policy" not in caplog.text
    with server.client() as client:
        client.config_set("maxmemory-policy", "allkeys-lru")
    cluster.store()
    (warning,) = [r for r in caplog.records if "maxmemory-policy" in r.getMessage()]
    assert warning.levelno == logging.WARNING
    assert "allkeys-lru" in warning.getMessage()


def test_members_differing_in_anything_but_the_namespace_share_one(
    server: Server, cluster: Cluster
) -> None:
    member = Member(os.urandom(16), "h", "s", os.urandom(16), os.urandom(16), rank=3)
    same = Namespace(**{f.name: getattr(NAMESPACE, f.name) for f in dataclasses.fields(NAMESPACE)})
    registry = connect_registry(server.url, same, member, options=FAST)
    registry.close()
    with server.client() as client:
        assert client.smembers(keys.TAGS) == {TAG}
        assert client.hget(b"n" + TAG, "encoding") == NAMESPACE.encode()
