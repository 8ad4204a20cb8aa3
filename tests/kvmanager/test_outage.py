"""The registry goes away in every way it can, and comes back."""

from __future__ import annotations

import dataclasses
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from hicache_backends.errors import RegistryUnavailable, StorageError
from hicache_backends.outcomes import Reason
from hicache_backends.storage import PageEntry
from kvmanager.connection import Connection
from kvmanager.model import State
from kvmanager.options import RegistryOptions
from tests.kvmanager.members import FAST, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server, free_port


def took_ms(call: Callable[[], object]) -> float:
    """How long a call takes that has no answer."""
    began = time.monotonic()
    with pytest.raises(RegistryUnavailable):
        call()
    return (time.monotonic() - began) * 1000


def test_a_stopped_server_delays_each_call_to_its_deadline_until_the_breaker_opens(
    own_server: Server, own_cluster: Cluster
) -> None:
    slow = RegistryOptions(timeout_ms=5000, heartbeat_ms=60_000, ttl_ms=180_000)
    store = own_cluster.store(options=slow)
    store.settled()
    keys = digests(4)
    own_server.freeze()
    for _ in range(3):
        assert took_ms(lambda: store.registry.lookup(keys, [store.member.medium], soon(100))) > 95
    assert store.registry.state is State.DOWN
    assert took_ms(lambda: store.registry.claim(keys, soon(5000))) < 2500
    assert took_ms(lambda: store.registry.publish(store.chain(keys), b"", soon(5000))) < 2500
    own_server.thaw()


def test_every_call_returns_by_its_deadline_when_the_server_is_stopped(
    own_server: Server, own_cluster: Cluster
) -> None:
    never_open = RegistryOptions(
        timeout_ms=5000, heartbeat_ms=60_000, ttl_ms=180_000, breaker_failures=1000
    )
    store = own_cluster.store(options=never_open)
    store.settled()
    keys = digests(2)
    entries = store.chain(keys)
    media = [store.member.medium]
    own_server.freeze()
    calls: list[Callable[[], object]] = [
        lambda: store.registry.lookup(keys, media, soon(100)),
        lambda: store.registry.claim(keys, soon(100)),
        lambda: store.registry.publish(entries, b"8 bytes!", soon(100)),
        lambda: store.registry.abort(keys, b"8 bytes!", soon(100)),
        lambda: store.registry.remove(entries, soon(100)),
        lambda: store.registry.report_bad(keys[0], b"location", soon(100)),
        lambda: store.registry.clear_namespace(soon(100)),
    ]
    for call in calls:
        assert took_ms(call) < 1000
    began = time.monotonic()
    threads = [
        threading.Thread(
            target=lambda: took_ms(lambda: store.registry.publish(entries, b"", soon(250)))
        )
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert time.monotonic() - began < 1.75, "they wait one after another"
    own_server.thaw()


def test_a_server_that_goes_on_is_used_again_over_new_connections(
    own_server: Server, own_cluster: Cluster
) -> None:
    store = own_cluster.store(options=RegistryOptions(timeout_ms=100, heartbeat_ms=100, ttl_ms=400))
    store.settled()
    keys = digests(4)
    store.write(store.chain(keys[:2]))
    with own_server.client() as client:
        before = {entry["id"] for entry in client.client_list()}
        own_server.freeze()
        eventually(lambda: store.registry.state is State.DOWN)
        missed = store.chain(keys[2:], parent=keys[1])
        with pytest.raises(RegistryUnavailable):
            store.write(missed)
        own_server.thaw()
        store.settled()
        assert store.lookup(keys).prefix == 4
        after = {e["id"] for e in client.client_list() if e["name"] == "" and e["id"] not in before}
        assert after, "the session did not make new connections"


def test_no_data_call_probes_a_registry_that_is_down(
    own_server: Server, own_cluster: Cluster
) -> None:
    rare = RegistryOptions(heartbeat_ms=60_000, ttl_ms=180_000)
    store = own_cluster.store(options=rare, start=False)
    own_server.kill()
    keys = digests(1)
    for _ in range(2):
        with pytest.raises(RegistryUnavailable):
            store.lookup(keys)
    own_server.start()
    for _ in range(20):
        with pytest.raises(RegistryUnavailable, match="is down"):
            store.lookup(keys)
    store.start()
    eventually(lambda: store.registry.state is not State.DOWN)
    store.lookup(keys)


def test_a_killed_server_that_returns_empty_is_told_everything_again(
    own_server: Server, own_cluster: Cluster
) -> None:
    stores = [own_cluster.store() for _ in range(2)]
    keys = digests(40)
    for store, some in zip(stores, (keys[:20], keys[20:]), strict=True):
        store.write(store.chain(some))
    own_server.kill()
    eventually(lambda: all(store.registry.state is State.DOWN for store in stores))
    more = digests(10)
    with pytest.raises(RegistryUnavailable):
        stores[0].write(stores[0].chain(more))
    own_server.start()
    for store in stores:
        store.settled()
    assert stores[1].lookup(keys + more).prefix == 50


def test_a_flushed_server_is_told_everything_again_within_a_heartbeat(
    server: Server, cluster: Cluster
) -> None:
    store, other = cluster.store(), cluster.store()
    keys = digests(300)
    store.write(store.chain(keys))
    store.settled()
    with server.client() as client:
        client.flushall()
    flushed = time.monotonic()
    found = other.lookup(keys)
    assert found.prefix == 300 or found.reasons[-1] is Reason.REGISTRY_REBUILDING
    eventually(lambda: other.lookup(keys).prefix == 300)
    period_s = FAST.heartbeat_ms / 1000
    assert time.monotonic() - flushed < period_s + 3  # and the time that the scheduler takes


def test_a_flush_in_the_middle_of_an_announcement_begins_it_anew(
    server: Server, cluster: Cluster
) -> None:
    slowly = RegistryOptions(heartbeat_ms=50, ttl_ms=200, announce_pages_per_s=20_000)
    store = cluster.store(options=slowly)
    store.settled()
    keys = digests(5000)
    store.write(store.chain(keys))
    with server.client() as client:
        client.flushall()
        eventually(lambda: int(store.registry.stats()["announced"]) > 500)
        client.flushall()
    eventually(lambda: store.registry.state is not State.UP)
    store.settled()
    assert store.lookup(keys).prefix == 5000


def test_pages_removed_during_an_announcement_stay_removed(
    server: Server, cluster: Cluster
) -> None:
    slowly = RegistryOptions(heartbeat_ms=50, ttl_ms=200, announce_pages_per_s=10_000)
    store = cluster.store(options=slowly)
    store.settled()
    keys = digests(3000)
    entries = store.chain(keys)
    store.write(entries)
    with server.client() as client:
        client.flushall()
    eventually(lambda: int(store.registry.stats()["announced"]) > 300)
    gone = entries[2900:]
    for entry in gone:
        del store.pages[entry.digest]
    store.registry.remove(gone, soon())
    store.settled()
    assert store.lookup(keys).prefix == 2900
    assert store.lookup(keys[2900:], prefix=False).locations == [b""] * 100


def test_removals_beyond_the_journal_during_an_announcement_begin_it_anew(
    own_server: Server, own_cluster: Cluster
) -> None:
    options = dataclasses.replace(FAST, journal_entries=500, announce_pages_per_s=5000)
    store = own_cluster.store(options=options)
    store.settled()
    entries = store.chain(digests(3000))
    store.pages = {entry.digest: entry for entry in entries}
    core = store.registry.core
    with own_server.client() as client:
        client.flushall()
    eventually(lambda: int(store.registry.stats()["announced"]) > 300)
    own_server.kill()
    eventually(lambda: store.registry.state is State.DOWN)
    for start in range(1000, 3000, 100):
        gone = entries[start : start + 100]
        for entry in gone:
            del store.pages[entry.digest]
        with pytest.raises(RegistryUnavailable):
            store.registry.remove(gone, soon())
        assert len(core.withdrawn or ()) <= 500
    own_server.start()
    store.settled()
    found = store.lookup([entry.digest for entry in entries], prefix=False)
    assert [bool(location) for location in found.locations] == [n < 1000 for n in range(3000)]


def test_a_server_restored_from_an_older_snapshot_is_told_the_rest_from_the_journal(
    make_server: Callable[..., Server],
) -> None:
    server = make_server("--dbfilename", "dump.rdb").start()
    with Cluster(server.url) as cluster:
        store = cluster.store()
        store.settled()
        keys = digests(30)
        entries = store.chain(keys)
        store.write(entries[:10])
        with server.client() as client:
            client.save()
        store.write(entries[10:])
        store.registry.remove(entries[5:6], soon())
        server.kill()
        eventually(lambda: store.registry.state is State.DOWN)
        announced = store.registry.stats()["announced"]
        server.start()
        store.settled()
        held = store.lookup(keys, prefix=False)
        assert [bool(location) for location in held.locations] == [n != 5 for n in range(30)]
        assert store.registry.stats()["announced"] == announced
        assert int(store.registry.stats()["replayed"]) >= 21


def test_what_the_journal_no_longer_holds_is_announced(make_server: Callable[..., Server]) -> None:
    server = make_server("--dbfilename", "dump.rdb").start()
    short = RegistryOptions(timeout_ms=500, heartbeat_ms=100, ttl_ms=400, journal_entries=50)
    with Cluster(server.url) as cluster:
        store = cluster.store(options=short)
        store.settled()
        keys = digests(200)
        entries = store.chain(keys)
        with server.client() as client:
            client.save()
        for start in range(0, 200, 20):
            store.write(entries[start : start + 20])
        assert int(store.registry.stats()["journal_entries"]) <= 50
        server.kill()
        server.start()
        eventually(lambda: store.lookup_or_none(keys) == 200)
        store.settled()
        assert int(store.registry.stats()["announced"]) >= 200


def test_a_server_that_is_down_at_the_start_is_joined_later(
    make_server: Callable[..., Server], caplog: pytest.LogCaptureFixture
) -> None:
    server = make_server()
    with Cluster(server.url) as cluster:
        began = time.monotonic()
        store = cluster.store(options=dataclasses.replace(FAST, connect_timeout_ms=5000))
        assert time.monotonic() - began < 2.5
        assert store.registry.state is State.DOWN
        keys = digests(3)
        with pytest.raises(RegistryUnavailable):
            store.write(store.chain(keys))
        time.sleep(0.5)  # several probes
        warnings = [r for r in caplog.records if r.levelno >= logging.WARNING]
        assert len(warnings) == 1
        server.start()
        store.settled()
        assert store.lookup(keys).prefix == 3


@pytest.mark.parametrize("accepts", [True, False])
def test_an_address_that_swallows_packets_does_not_hold_anything_up(accepts: bool) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        queued = [] if accepts else [socket.create_connection(address) for _ in range(1)]
        began = time.monotonic()
        with Cluster(f"redis://127.0.0.1:{address[1]}") as cluster:
            store = cluster.store()
            assert time.monotonic() - began < FAST.connect_timeout_ms / 1000 + 1
            assert took_ms(lambda: store.lookup(digests(1))) < FAST.timeout_ms / 2
        for connection in queued:
            connection.close()


def test_a_source_that_fails_is_asked_again_from_the_beginning(server: Server) -> None:
    with Cluster(server.url) as cluster:
        store = cluster.store()
        store.settled()
        entries = store.chain(digests(600))
        store.write(entries)
        failures = iter([0, 300])

        def source() -> Iterator[PageEntry]:
            fails_at = next(failures, None)
            for n, entry in enumerate(entries):
                if n == fails_at:
                    raise StorageError("the medium is gone for a moment")
                yield entry

        store.source = source
        with server.client() as client:
            client.flushall()
        eventually(lambda: store.registry.state is not State.UP)
        store.settled()
        assert next(failures, None) is None
        assert store.lookup([entry.digest for entry in entries]).prefix == 600


def test_a_conditional_removal_without_its_reply_is_made_good(
    cluster: Cluster, failing_over: FailingOver
) -> None:
    owner = cluster.store(url=failing_over.url)
    owner.settled()
    head, read, *rest = digests(4)
    entries = owner.chain([head, read, *rest])
    owner.write(entries)
    other = cluster.store()
    other.lookup([head, read])
    owner.registry.remove([owner.entry(head)], soon(), touched_ms=[0])  # the server has the script
    failing_over.phase = "swallow"
    with pytest.raises(RegistryUnavailable):
        owner.registry.remove(entries[:2], soon(200), touched_ms=[3_600_000] * 2)
    assert failing_over.swallowed
    assert other.lookup([head, read]).prefix == 2  # the owner's eviction goes on nevertheless
    owner.pages = {entry.digest: entry for entry in entries[2:]}
    failing_over.phase = "pass"
    eventually(lambda: not any(other.lookup([head, read], prefix=False).locations))
    owner.settled()
    assert other.lookup(rest).prefix == 2


def test_a_failover_is_ridden_out_with_one_new_connection_a_probe(
    cluster: Cluster, failing_over: FailingOver
) -> None:
    store = cluster.store(url=failing_over.url)
    store.settled()
    keys = digests(1)
    slowest = 0.0
    for phase in ("hang", "readonly", "reset"):
        failing_over.phase = phase
        eventually(lambda: store.registry.state is State.DOWN)
        opened = failing_over.opened
        for _ in range(50):
            slowest = max(slowest, took_ms(lambda: store.lookup(keys)))
        assert failing_over.opened - opened <= 3
        failing_over.phase = "pass"
        store.settled()
    assert slowest < FAST.timeout_ms / 2
    assert store.lookup(keys).prefix == 0


class FailingOver(threading.Thread):
    """A proxy before a server: passes, hangs, answers READONLY, resets connections, or swallows
    the server's replies."""

    def __init__(self, target_port: int) -> None:
        super().__init__(daemon=True)
        self.phase = "pass"
        self.opened = self.swallowed = 0
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"redis://127.0.0.1:{self._listener.getsockname()[1]}"

    def run(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.opened += 1
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(("127.0.0.1", self._target_port)) as server:
            while request := client.recv(65536):
                if self.phase == "pass":
                    server.sendall(request)
                    client.sendall(server.recv(65536))
                elif self.phase == "swallow":
                    server.sendall(request)
                    self.swallowed += len(server.recv(65536))
                elif self.phase == "readonly":
                    client.sendall(b"-READONLY You can't write against a read only replica.\r\n")
                elif self.phase == "reset":
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
                    return


@pytest.fixture
def failing_over(server: Server) -> Iterator[FailingOver]:
    proxy = FailingOver(server.port)
    proxy.start()
    yield proxy
    proxy.close()


def test_a_restarted_server_costs_no_more_than_a_few_failed_calls(
    own_server: Server, own_cluster: Cluster
) -> None:
    store = own_cluster.store()
    store.settled()
    store.lookup(digests(1))
    own_server.kill()
    own_server.start()
    eventually(lambda: store.lookup_or_none(digests(1)) == 0)
    store.settled()


def test_a_mutation_whose_reply_was_lost_counts_once(
    own_server: Server, own_cluster: Cluster
) -> None:
    store, other = own_cluster.store(), own_cluster.store()
    for member in (store, other):
        member.settled()
    head, *rest = digests(3)
    trunk = store.chain([head])
    store.write(trunk)
    own_server.freeze()
    for child in rest:  # the requests wait in the server's socket buffers
        with pytest.raises(RegistryUnavailable):
            store.registry.publish([store.entry(child, head)], b"", soon(50))
    own_server.thaw()
    eventually(lambda: store.lookup_or_none([head, *rest]) == 3)
    store.settled()
    children = [store.lookup([child]).locations[0] for child in rest]
    entries = [type(trunk[0])(child, head, at) for child, at in zip(rest, children, strict=True)]
    store.registry.remove(entries, soon())
    answers = store.registry.remove(trunk, soon(), touched_ms=[0])
    assert [answer.name for answer in answers] == ["REMOVED"]


def test_a_forked_child_has_no_registry_and_leaves_the_parents_alone(
    server: Server, cluster: Cluster
) -> None:
    store = cluster.store()
    store.settled()
    keys = digests(2)
    store.write(store.chain(keys))
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover
        said = b""
        try:
            for call in (
                lambda: store.lookup(keys),
                lambda: store.registry.publish(store.chain(keys), b"", soon()),
            ):
                try:
                    call()
                    said += b"answered "
                except RegistryUnavailable:
                    said += b"unavailable "
            store.registry.close()
        finally:
            os.write(writing, said)
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 100) == b"unavailable unavailable "
    os.close(reading)
    os.close(writing)
    assert store.lookup(keys).prefix == 2
    with server.client() as client:
        assert any(key.startswith(b"r") for key in client.scan_iter())


def test_closing_is_bounded_when_the_server_is_stopped(
    own_server: Server, own_cluster: Cluster
) -> None:
    store = own_cluster.store(options=RegistryOptions(heartbeat_ms=60_000, ttl_ms=180_000))
    store.settled()
    own_server.freeze()
    began = time.monotonic()
    store.registry.close(300)
    assert time.monotonic() - began < 2.5
    own_server.thaw()


def test_closing_leaves_a_heartbeat_that_waits_its_connection(
    own_server: Server, own_cluster: Cluster
) -> None:
    slow = RegistryOptions(timeout_ms=1500, heartbeat_ms=50, ttl_ms=1000)
    store = own_cluster.store(options=slow)
    store.settled()
    upkeep = store.registry._upkeep
    own_server.freeze()
    beats = store.registry.stats()["round_trips"]
    eventually(lambda: store.registry.stats()["round_trips"] != beats)
    connection = upkeep._connection
    assert isinstance(connection, Connection)
    store.registry.close(100)
    # its number would soon be another file's, and the thread would read from that
    assert connection._stream.fileno() >= 0
    eventually(lambda: connection._stream.fileno() < 0)
    own_server.thaw()


def test_closing_sends_what_is_journalled_and_takes_the_process_away(
    server: Server, cluster: Cluster
) -> None:
    store: Store = cluster.store(start=False)
    keys = digests(5)
    store.write(store.chain(keys))
    store.registry.close()
    reader = cluster.store()
    assert reader.lookup(keys).prefix == 5
    with server.client() as client:
        alive = [key for key in client.scan_iter() if key.startswith(b"r")]
    assert len(alive) == 1
    assert store.registry.state is State.DOWN
    with pytest.raises(RegistryUnavailable, match="closed"):
        store.lookup(keys)
    store.registry.close()


def test_an_unused_port_is_named_in_the_error() -> None:
    port = free_port()
    with Cluster(f"redis://:secret@127.0.0.1:{port}") as cluster:
        store = cluster.store()
        with pytest.raises(RegistryUnavailable, match=str(port)) as failure:
            store.lookup(digests(1))
        assert "secret" not in str(failure.value)
