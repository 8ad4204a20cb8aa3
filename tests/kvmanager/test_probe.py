"""Lookups by plain HGETs: the same answers as the script's, and the script where they must."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends import native_calls
from kvmanager import keys, resp
from kvmanager.aio import AsyncRegistry
from kvmanager.model import Removal
from kvmanager.probe import SKEW, Probe, Routes
from tests.kvmanager.members import FAST, NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server

TAG = keys.tag(NAMESPACE.fingerprint)
NOW, INTERVAL = 1000, 600
PATIENCE = INTERVAL + SKEW
SCRIPT_REPLY = b"$1\r\nK\r\n"


def entry(stamp: int, flags: int, location: bytes) -> bytes:
    head = bytes((64 + len(location),)) + stamp.to_bytes(4, "big") + bytes((flags, 0))
    return resp.bulk(head + location)


REPLIES = st.one_of(
    st.builds(
        entry,
        st.sampled_from([NOW, NOW - PATIENCE + 1, NOW - PATIENCE, NOW + 5, (1 << 32) - 9]),
        st.sampled_from([64, 192, 0]),
        st.binary(min_size=1, max_size=48),
    ),
    st.sampled_from([b"$-1\r\n", b"-WRONGTYPE no\r\n", b":7\r\n", b"+\r\n", b"$0\r\n\r\n"]),
    st.binary(max_size=60).map(resp.bulk),
)


def probe_of(asked: int, media: int, *, why: bool) -> Probe:
    routes = Routes(TAG, INTERVAL)
    reached = tuple(os.urandom(16) for _ in range(media))
    route = routes.find(3, reached)
    told = b"".join(map(resp.bulk, [b"3", *(b"%d" % (5000 + n) for n in range(media))]))
    routes.learn(3, reached, told)
    assert routes.find(3, reached).buckets != route.buckets
    return Probe(routes, 3, reached, digests(asked), why, NOW, routes.find(3, reached))


@given(st.data(), st.integers(1, 6), st.integers(1, 3), st.booleans())
def test_the_native_call_asks_and_reads_as_the_python_one(
    data: st.DataObject, asked: int, media: int, why: bool
) -> None:
    probe = probe_of(asked, media, why=why)
    count = asked * media
    pages = data.draw(st.lists(REPLIES, min_size=count, max_size=count))
    expected = probe.route.parts[3]
    tail = data.draw(
        st.sampled_from([expected, expected, expected.replace(b"$1\r\n3", b"$1\r\n4")])
    )
    raw = b"".join(pages) + tail
    locations, read_tail = probe.read_by_python(raw)
    assert read_tail == tail
    assert probe.read(raw) == (locations, tail)
    assert probe.packed() == probe.packed_by_python()
    ours, theirs = socket.socketpair()
    received = bytearray()

    def serve() -> None:
        while len(received) < len(probe.packed_by_python()):
            received.extend(theirs.recv(65536))
        theirs.sendall(raw)
        if locations is None:
            assert theirs.recv(65536) == probe.script_request()
            theirs.sendall(SCRIPT_REPLY)

    server = threading.Thread(target=serve)
    with ours, theirs:
        server.start()
        answer = native_calls.lookup(
            ours.fileno(),
            probe.route.parts,
            probe.digests,
            soon(),
            why=why,
            now=NOW,
            interval=PATIENCE,
        )
        server.join()
    assert bytes(received) == probe.packed_by_python()
    assert answer == ((None, tail, SCRIPT_REPLY) if locations is None else (locations, b"", b""))


def scripts_called(server: Server) -> int:
    with server.client() as client:
        return int(client.info("commandstats").get("cmdstat_evalsha", {}).get("calls", 0))


def quiet_pair(cluster: Cluster) -> tuple[Store, Store]:
    return cluster.store(start=False), cluster.store(start=False)


def test_pages_in_use_are_found_without_the_script(server: Server, cluster: Cluster) -> None:
    owner, reader = quiet_pair(cluster)
    chain = digests(200)
    entries = owner.chain(chain)
    owner.write(entries)
    media = [owner.member.medium]
    first = reader.lookup(chain)
    reader.lookup(chain)  # the script, which sees that the pages were in use
    before = scripts_called(server)
    trips = int(reader.registry.stats()["round_trips"])
    assert reader.lookup(chain) == first
    found = reader.registry.lookup([*chain[:9], *digests(2)], media, soon(), why=False)
    assert found.locations == [e.location for e in entries[:9]] + [b""] * 2
    assert scripts_called(server) == before
    assert int(reader.registry.stats()["round_trips"]) == trips + 2


def test_an_access_time_that_is_due_is_written(server: Server, cluster: Cluster) -> None:
    owner, reader = quiet_pair(cluster)
    used, fresh = digests(3), digests(3)
    owner.write(owner.chain(used))
    reader.lookup(used)
    reader.lookup(used)  # from here on without the script
    entries = owner.chain(fresh)
    owner.write(entries)
    assert reader.lookup(fresh).prefix == 3
    touched = [60_000] * 3
    assert all(owner.registry.remove(entries, soon(), touched_ms=touched))


def test_pages_read_over_and_over_are_not_removed_by_their_owner(cluster: Cluster) -> None:
    options = dataclasses.replace(FAST, touch_interval_ms=300)
    owner, reader = cluster.store(start=False), cluster.store(start=False, options=options)
    chain = digests(20)
    entries = owner.chain(chain)
    owner.write(entries)
    media = [owner.member.medium]
    until = time.monotonic() + 1.2
    while time.monotonic() < until:
        assert reader.registry.lookup(chain, media, soon(), why=False).prefix == 20
    for touched_ms, answer in ((700, Removal.TOUCHED), (0, Removal.REMOVED)):
        last = entries[-1:]  # no page follows it
        assert owner.registry.remove(last, soon(), touched_ms=[touched_ms]) == [answer]


def test_where_the_script_is_needed_it_is_asked_once(server: Server, cluster: Cluster) -> None:
    owner, reader = quiet_pair(cluster)
    used, fresh = digests(3), digests(3)
    owner.write(owner.chain(used))
    reader.lookup(used)
    reader.lookup(used)  # from here on without the script
    entries = owner.chain(fresh)
    owner.write(entries)
    before, scripts = reader.registry.stats(), scripts_called(server)
    found = reader.registry.lookup(fresh, [owner.member.medium], soon(), why=False)
    assert found.locations == [e.location for e in entries]
    after = reader.registry.stats()
    assert scripts_called(server) == scripts + 1
    assert int(after["calls"]) == int(before["calls"]) + 1


@pytest.mark.parametrize("said", [b"3000000000", b"4294967296", b"9" * 5000, b"-7", b"0", b"x"])
def test_a_number_of_buckets_that_is_none_misleads_nobody(
    server: Server, cluster: Cluster, said: bytes
) -> None:
    owner, reader = quiet_pair(cluster)
    owner.write(owner.chain(digests(1)))
    with server.client() as client:
        client.hset(b"n" + TAG, b"f:0." + keys.medium_id(owner.member.medium), said)
    chain = digests(40)
    entries = owner.chain(chain)
    owner.write(entries)
    for why in (True, False, True, False):
        found = reader.registry.lookup(chain, [owner.member.medium], soon(), why=why)
        assert found.locations == [e.location for e in entries]


@pytest.mark.parametrize("why", [True, False])
def test_who_reaches_no_medium_finds_nothing(cluster: Cluster, why: bool) -> None:
    store = cluster.store(start=False)
    chain = digests(3)
    store.write(store.chain(chain))

    async def on_asyncio() -> int:
        registry = AsyncRegistry(store.registry)
        found = await registry.lookup(chain, [], soon(), why=why)
        await registry.close()
        return found.prefix

    assert store.registry.lookup(chain, [], soon(), why=why).prefix == 0
    assert asyncio.run(on_asyncio()) == 0


def test_pages_that_moved_to_new_buckets_are_found(server: Server, cluster: Cluster) -> None:
    owner, reader = quiet_pair(cluster)
    medium = keys.medium_id(owner.member.medium)
    chain = digests(8192)
    with server.client() as client:
        client.hset(b"n" + TAG, b"f:0." + medium, 256)
        for at in range(0, len(chain), 1024):
            owner.write(owner.chain(chain[at : at + 1024]))
            for _ in range(2):  # by the script, then without it
                assert reader.lookup(chain[: at + 1024]).prefix == at + 1024
        assert int(client.hget(b"n" + TAG, b"f:0." + medium) or 0) == 512


def test_no_page_is_missed_or_misplaced_while_buckets_are_split(
    server: Server, cluster: Cluster
) -> None:
    owner, reader = quiet_pair(cluster)
    media = [owner.member.medium]
    with server.client() as client:
        client.hset(b"n" + TAG, b"f:0." + keys.medium_id(media[0]), 256)
    known = owner.chain(digests(500))
    owner.write(known)
    reader.lookup([entry.digest for entry in known])
    asked, expected = [e.digest for e in known], [e.location for e in known]
    over, wrong = threading.Event(), []

    def read() -> None:
        while not over.is_set():
            found = reader.registry.lookup(asked, media, soon(), why=False)
            if found.locations != expected:
                wrong.append(found.prefix)

    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(24):
            owner.write(owner.chain(digests(1024)))
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert not wrong
    with server.client() as client:
        assert int(client.hget(b"n" + TAG, b"f:0." + keys.medium_id(media[0])) or 0) > 1500


def test_what_was_found_without_the_script_is_counted(server: Server, cluster: Cluster) -> None:
    owner, reader = quiet_pair(cluster)
    chain = digests(10)
    owner.write(owner.chain(chain))
    for _ in range(5):
        reader.lookup(chain)
    reader.start()

    def hits() -> int:
        with server.client() as client:
            return int(client.hget(b"n" + TAG, "hits") or 0)

    eventually(lambda: hits() == 50)


def test_without_the_extension_and_on_asyncio_the_same_is_found(
    server: Server, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner = cluster.store(start=False)
    chain = digests(300)
    entries = owner.chain(chain)
    owner.write(entries)
    monkeypatch.setattr(native_calls, "HAVE_NATIVE", False)
    reader = cluster.store(start=False)
    asked = [*chain, *digests(4)]

    async def on_asyncio() -> None:
        registry = AsyncRegistry(reader.registry)
        for _ in range(3):
            found = await registry.lookup(asked, [owner.member.medium], soon(), why=False)
            assert found.locations == [e.location for e in entries] + [b""] * 4
        await registry.close()

    for _ in range(3):
        found = reader.lookup(asked)
        assert found.locations == [e.location for e in entries] + [b""] * 4
    asyncio.run(on_asyncio())


def test_what_is_no_digest_is_refused(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        store = cluster.store(start=False)
        with pytest.raises(ValueError, match="16 bytes"):
            store.lookup([b"short"])
        monkeypatch.setattr(native_calls, "HAVE_NATIVE", False)
