"""What listeners are told, by a real service over real servers."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import uvicorn

from hicache_backends.storage import PageEntry
from kvmanager import keys, scripts
from kvmanager.control.namespaces import id_of
from kvmanager.control.sweep import Sweep
from kvmanager.options import RegistryOptions
from kvmanager.service import feeds, listener
from kvmanager.service.access import Access
from kvmanager.service.app import make_app
from kvmanager.service.backing import Backing
from kvmanager.service.control import events
from kvmanager.service.protocol import Protocol
from tests.kvmanager.http_fixtures import server_binary, service
from tests.kvmanager.http_service import REPOSITORY, Service
from tests.kvmanager.members import MORTAL, NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.mirror import Mirror, Stream
from tests.kvmanager.servers import Server

__all__ = ["server_binary", "service"]

TAG = keys.tag(NAMESPACE.fingerprint)
ID = id_of(TAG)
SNAPSHOT = f"namespace={ID}&from=snapshot"


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    with Cluster(server.url) as members:
        yield members


def stored(*stores: Store) -> dict[tuple[str, str], str]:
    """What a mirror should have."""
    return {
        (keys.medium_id(store.member.medium).decode(), digest.hex()): store.member.store.hex()
        for store in stores
        for digest in store.pages
    }


class Follower:
    """Keeps a mirror in a thread, as a router does."""

    def __init__(self, service: Service, query: str = SNAPSHOT) -> None:
        self.mirror = Mirror()
        self.stream = Stream(service, query)
        assert self.stream.status == 200
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            for message in self.stream.messages():
                self.mirror.apply(message)
        except (OSError, ValueError, AttributeError):
            pass  # closed under the reader

    def live(self) -> Follower:
        eventually(lambda: "live" in self.mirror.kinds)
        return self

    def close(self) -> None:
        sock = self.stream._connection.sock
        if sock is not None:
            sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self.stream.close()


@pytest.fixture
def follow(service: Service) -> Iterator[list[Follower]]:
    made: list[Follower] = []
    yield made
    for follower in made:
        follower.close()


def test_a_mirror_begins_with_all_pages_and_hears_what_happens(
    service: Service, cluster: Cluster, follow: list[Follower]
) -> None:
    one, other = cluster.store(), cluster.store(medium=os.urandom(16))
    one.settled()
    other.settled()
    first = one.chain(digests(3000))
    one.write(first)
    follower = Follower(service)
    follow.append(follower)
    mirror = follower.live().mirror
    assert mirror.fingerprint == NAMESPACE.fingerprint.hex()
    assert mirror.pages == stored(one)
    assert mirror.stores[other.member.store.hex()]["alive"] is True
    assert mirror.stores[one.member.store.hex()]["server"] == "server"
    other.write(other.chain(digests(40)))
    one.registry.remove(first[:2000:-1], soon())
    for entry in first[2001:]:
        del one.pages[entry.digest]
    eventually(lambda: mirror.pages == stored(one, other))
    late = cluster.store()
    eventually(lambda: late.member.store.hex() in mirror.stores)
    assert mirror.stores[late.member.store.hex()]["uuid"] == cluster.medium.hex()
    assert "reset" not in mirror.kinds


def test_a_page_that_a_reader_reported_is_told_as_removed(
    service: Service, cluster: Cluster, follow: list[Follower]
) -> None:
    owner, reader = cluster.store(), cluster.store()
    owner.settled()
    pages = digests(3)
    entries = owner.chain(pages)
    owner.write(entries)
    follow.append(Follower(service).live())
    reader.registry.report_bad(pages[2], entries[2].location, soon(), parent=pages[1])
    owner.pages.pop(pages[2])
    eventually(lambda: follow[0].mirror.pages == stored(owner))


def test_a_process_that_is_killed_is_lost_and_heard_of_when_it_is_back(
    server: Server, service: Service, cluster: Cluster, follow: list[Follower]
) -> None:
    store = cluster.store(start=False, options=MORTAL)  # nobody renews it: as after kill -9
    kept = cluster.store()
    follow.append(Follower(service).live())
    uuid = store.member.store.hex()
    with server.client() as client:
        eventually(lambda: not client.exists(b"r" + TAG + store.member.process))

    def swept() -> bool:
        run_sweep(kept)
        return not follow[0].mirror.stores[uuid]["alive"]

    eventually(swept)
    run_sweep(kept)
    store.start()
    eventually(lambda: bool(follow[0].mirror.stores[uuid]["alive"]))
    assert follow[0].mirror.kinds.count("lost") == 1
    assert follow[0].mirror.stores[kept.member.store.hex()]["alive"]


def test_a_process_that_leaves_is_lost_at_once_and_told_once(
    service: Service, cluster: Cluster, follow: list[Follower]
) -> None:
    kept, direct = cluster.store(), cluster.store()
    through = cluster.store(url=service.url)
    follow.append(Follower(service).live())
    mirror = follow[0].mirror
    for store in (direct, through):
        store.registry.close()
        said = mirror.stores[store.member.store.hex()]
        eventually(partial(_is_lost, said), 2)
        assert said["why"] == "left"
    run_sweep(kept)
    late = cluster.store()
    eventually(lambda: late.member.store.hex() in mirror.stores)
    assert mirror.kinds.count("lost") == 2
    assert mirror.stores[kept.member.store.hex()]["alive"]


def _is_lost(store: dict[str, Any]) -> bool:
    return store["alive"] is False


def test_the_stream_is_bounded_in_bytes_as_well(server: Server) -> None:
    source = (Path(scripts.__file__).parent / "telling.lua").read_text()
    with server.client() as client:
        tell = client.register_script(
            source + "tell(KEYS[1], '99999999999', 'kind', 'removed', 'digests', ARGV[1])"
        )
        for size in (160, 16 * 1024, 160, 4096):
            for _ in range(2500):
                tell([b"n" + TAG], [b"d" * size])
            assert client.memory_usage(b"e" + TAG, samples=0) < 40 << 20
        assert 2000 < client.xlen(b"e" + TAG) < 4300


def run_sweep(store: Store) -> None:
    sweep = Sweep(TAG, lease_ms=1)
    while store.registry.driver.run(sweep.step(), soon()):
        pass


def test_a_process_that_is_killed_is_told_as_lost_by_whoever_sweeps(server: Server) -> None:
    sweeping = Service(server.url, "--sweep-every", "0.2").start()
    pages = digests(3)
    writer = [sys.executable, "-m", "tests.kvmanager.http_writer", server.url, "ab" * 16]
    paths = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}"}
    process = subprocess.Popen(
        [*writer, b"".join(pages).hex(), "", "1"],
        env={**os.environ, **paths},
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        mirror = Mirror()
        with Stream(sweeping, SNAPSHOT) as stream:
            stream.until(mirror, "live")
            assert [store["alive"] for store in mirror.stores.values()] == [True]
            process.kill()
            stream.until(mirror, "lost")
        assert [store["alive"] for store in mirror.stores.values()] == [False]
        assert len(mirror.pages) == 3, "on a shared medium they can still be read"
    finally:
        process.kill()
        process.communicate()
        sweeping.stop()


def test_clearing_a_namespace_empties_the_mirror(
    service: Service, cluster: Cluster, follow: list[Follower]
) -> None:
    store = cluster.store()
    store.write(store.chain(digests(20)))
    follow.append(Follower(service).live())
    assert len(follow[0].mirror.pages) == 20
    store.registry.clear_namespace(soon())
    eventually(lambda: "cleared" in follow[0].mirror.kinds and not follow[0].mirror.pages)
    eventually(lambda: not store.pages)
    store.settled()
    store.write(store.chain(digests(5)))
    eventually(lambda: follow[0].mirror.pages == stored(store))
    assert "reset" not in follow[0].mirror.kinds


def test_a_listener_that_comes_back_hears_what_it_missed_and_nothing_else(
    service: Service, cluster: Cluster
) -> None:
    store = cluster.store()
    store.write(store.chain(digests(10)))
    mirror = Mirror()
    with Stream(service, SNAPSHOT) as stream:
        stream.until(mirror, "live")
    for _ in range(200):  # more than are read at once
        store.write(store.chain(digests(3)))
    mirror.kinds.clear()
    with Stream(service, f"namespace={ID}&from={mirror.sequence}") as stream:
        stream.until(mirror, "live")
    assert mirror.kinds == ["added"] * 200 + ["live"]
    assert mirror.pages == stored(store)
    store.write(store.chain(digests(3)))
    with Stream(service, SNAPSHOT, {"last-event-id": mirror.sequence}) as stream:
        stream.until(mirror, "live")
    assert mirror.kinds[-2:] == ["added", "live"]
    assert mirror.pages == stored(store)


@pytest.mark.parametrize("loss", ["trimmed", "flushed", "lapsed", "foreign"])
def test_a_gap_is_never_silent(
    server: Server, service: Service, cluster: Cluster, loss: str
) -> None:
    store = cluster.store()
    store.write(store.chain(digests(10)))
    mirror = Mirror()
    with Stream(service, SNAPSHOT) as stream:
        stream.until(mirror, "live")
    with server.client() as client:
        if loss == "trimmed":
            store.write(store.chain(digests(10)))
            client.xtrim(b"e" + TAG, maxlen=0, approximate=False)
        elif loss == "flushed":
            client.flushall()
            store.settled()
        elif loss == "lapsed":  # nobody has listened for the length of a lease
            client.hset(b"n" + TAG, "events_until", 1)
            store.write(store.chain(digests(10)))
        else:
            mirror.sequence = "99999999999999-0"
    eventually(lambda: store.lookup(list(store.pages)).prefix == len(store.pages))
    mirror.kinds.clear()
    with Stream(service, f"namespace={ID}&from={mirror.sequence}") as stream:
        stream.until(mirror, "live")
    assert mirror.kinds[:2] == ["reset", "snapshot"]
    assert mirror.pages == stored(store)


def test_a_quiet_namespace_needs_no_lease_to_be_taken_up_again(
    server: Server, service: Service, cluster: Cluster
) -> None:
    store = cluster.store()
    store.write(store.chain(digests(10)))
    mirror = Mirror()
    with Stream(service, SNAPSHOT) as stream:
        stream.until(mirror, "live")
    with server.client() as client:
        client.hset(b"n" + TAG, "events_until", 1)  # over, but nothing has happened since
    mirror.kinds.clear()
    with Stream(service, f"namespace={ID}&from={mirror.sequence}") as stream:
        stream.until(mirror, "live")
    assert mirror.kinds == ["live"]


def test_a_flush_of_redis_under_a_listener_is_told_and_made_good(
    server: Server, service: Service, cluster: Cluster, follow: list[Follower]
) -> None:
    store = cluster.store()
    store.write(store.chain(digests(100)))
    follow.append(Follower(service).live())
    with server.client() as client:
        client.flushall()
    mirror = follow[0].mirror
    eventually(lambda: "reset" in mirror.kinds)
    eventually(lambda: mirror.kinds[-1] != "reset" and mirror.pages == stored(store), 10)


def test_nothing_is_written_while_nobody_listens(server: Server, cluster: Cluster) -> None:
    store = cluster.store()
    entries = store.chain(digests(10))
    store.write(entries)
    store.registry.remove(entries[::-1], soon())
    store.registry.clear_namespace(soon())
    with server.client() as client:
        assert not client.exists(b"e" + TAG)
        client.hset(b"n" + TAG, "events_until", 1)
        eventually(lambda: store.registry.state.value == "up")
        store.settled()
        store.write(store.chain(digests(10)))
        assert not client.exists(b"e" + TAG)
        assert not client.hexists(b"n" + TAG, "events_until")


def test_the_stream_is_bounded_and_goes_by_itself(
    server: Server, service: Service, cluster: Cluster
) -> None:
    store = cluster.store()
    with Stream(service, SNAPSHOT) as stream:
        stream.until(Mirror(), "live")
        with server.client() as client:
            assert 0 < client.pttl(b"e" + TAG) <= 120_000
            pipe = client.pipeline(transaction=False)
            for _ in range(20_000):
                pipe.xadd(b"e" + TAG, {"kind": "removed", "medium": "m", "digests": b""})
            pipe.execute()
            store.write(store.chain(digests(3)))
            assert client.xlen(b"e" + TAG) < 16_600


@pytest.fixture
def impatient(server: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The port of a service in this process, that gives a listener less time."""
    monkeypatch.setattr(events, "SEND_S", 0.5)
    app = make_app(Backing(server.url), Access(), None)
    config = uvicorn.Config(app, port=0, http=Protocol, log_config=None, lifespan="on", ws="none")
    serving = uvicorn.Server(config)
    thread = threading.Thread(target=serving.run)
    thread.start()
    eventually(lambda: serving.started)
    yield serving.servers[0].sockets[0].getsockname()[1]
    app.end()
    serving.should_exit = True
    thread.join(10)


def test_a_listener_that_does_not_read_loses_its_connection_and_costs_nobody_else_anything(
    service: Service, impatient: int, cluster: Cluster, follow: list[Follower]
) -> None:
    store = cluster.store(options=RegistryOptions(timeout_ms=10_000))
    follow.append(Follower(service).live())
    head = f"GET /v1/events?{SNAPSHOT} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", impatient), timeout=10) as deaf:
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.sendall(head)
        ours = deaf.getsockname()[1]
        assert is_connected(impatient, ours)
        for _ in range(200):  # 7 MB of JSON: more than the kernel holds
            store.registry.publish(publishable(store, 1000), b"", soon(10_000))
        eventually(lambda: not is_connected(impatient, ours), 20)
        eventually(lambda: follow[0].mirror.pages == stored(store), 20)
    assert "reset" not in follow[0].mirror.kinds


def publishable(store: Store, pages: int) -> list[PageEntry]:
    """New pages, which the store holds from now on."""
    entries = store.chain(digests(pages))
    store.pages.update((entry.digest, entry) for entry in entries)
    return entries


def is_connected(port: int, peer: int) -> bool:
    """Whether the kernel knows a connection from `port` here to `peer` here, in any state."""
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return any(f":{port:04X} 0100007F:{peer:04X}" in line for line in lines)


def test_a_service_that_ends_does_not_wait_for_its_listeners(server: Server) -> None:
    own = Service(server.url).start()
    try:
        with Cluster(server.url) as cluster:
            cluster.store()
            with Stream(own, SNAPSHOT) as stream:
                stream.until(Mirror(), "live")
                began = time.monotonic()
                assert own.terminate() == 0
                assert time.monotonic() - began < 5
                assert list(stream.messages()) == []
    finally:
        own.stop()


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 422),
        (f"namespace={ID}&from=", 422),
        (f"namespace={ID}&from=0", 422),
        (f"namespace={ID}&from=1-2-3", 422),
        (f"namespace={ID}&from=-1-0", 422),
        (f"namespace={ID}&from={1 << 64}-0", 422),
        (f"namespace={ID}&from=%00", 422),
        (f"namespace={ID}&from=%D9%A1-0", 422),
        ("namespace=xyz", 422),
        (f"namespace={ID}ab", 422),
        ("namespace=" + "0" * 18, 404),
    ],
)
def test_what_is_no_question_is_refused(
    service: Service, cluster: Cluster, query: str, status: int
) -> None:
    cluster.store()
    assert service.get(f"/v1/events?{query}")[0] == status


def test_limits_are_what_the_documentation_says() -> None:
    assert (feeds.MAX_LISTENERS, listener.HEARTBEAT_S) == (256, 15.0)
