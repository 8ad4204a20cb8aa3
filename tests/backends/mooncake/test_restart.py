"""A process that outlives its master opens its namespaces again at the first try: connections to
the master that is gone are not met twice."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.mooncake import client as client_module
from hicache_backends.mooncake import reach
from hicache_backends.mooncake.backend import MooncakeOptions, MooncakeStore, open_mooncake
from hicache_backends.mooncake.client import Client, connect, disconnect
from hicache_backends.mooncake.codes import NO_MASTER, TRANSFER_FAILED
from hicache_backends.mooncake.filesystem import MooncakeFileSystem
from hicache_backends.mooncake.options import find_cluster
from hicache_backends.objects.storage import ObjectStorage
from hicache_backends.pages import Pages
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
from tests.backends.mooncake.cluster import CLIENT_TTL_S, MooncakeCluster

PAGES = digests_of(*range(4))
SLOW_KNOCK = """
import pathlib, sys, time
pathlib.Path({begun!r}).touch()
while not pathlib.Path({go!r}).exists():
    time.sleep(0.01)
"""


@pytest.fixture
def own_cluster(network: None, tmp_path: Path) -> Iterator[MooncakeCluster]:
    cluster = MooncakeCluster(tmp_path, port=50091, http_port=9043)
    start(cluster)
    yield cluster
    cluster.stop()


@pytest.fixture
def client(own_cluster: MooncakeCluster) -> Iterator[Client]:
    """The process's client of the cluster, whose idle connections are many."""
    client = connect(find_cluster({"master": own_cluster.address}))
    use(client)
    yield client
    disconnect(client)


def soon() -> Deadline:
    return Deadline.after_ms(10_000)


def start(cluster: MooncakeCluster) -> None:
    cluster.start_master()
    cluster.start_holder(64 << 20)


def restart(cluster: MooncakeCluster) -> None:
    cluster.stop()
    start(cluster)


def use(client: Client) -> None:
    """Ask much at once: each call that finds no idle connection to the master makes one."""
    keys = [str(n) for n in range(200)]
    with ThreadPoolExecutor(16) as threads:
        list(threads.map(lambda _: client.exists(keys, soon()), range(400)))


def segments(cluster: MooncakeCluster) -> int:
    """How many the master knows, the holder's included."""
    connection = HTTPConnection("127.0.0.1", cluster.http_port, timeout=5)
    with closing(connection):
        connection.request("GET", "/get_all_segments")
        answer = connection.getresponse()
        assert answer.status == 200
        return len(answer.read().split())


def until(condition: Callable[[], bool], seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.02)


def opened(cluster: MooncakeCluster) -> ObjectStorage:
    return open_mooncake(NAMESPACE, MooncakeOptions(cluster.address, prefix="restart"))


def assert_serves(storage: ObjectStorage) -> None:
    assert all(put(storage, PAGES))
    assert get(storage, PAGES) == [True] * len(PAGES)


def test_a_store_that_was_closed_opens_again(own_cluster: MooncakeCluster) -> None:
    storage = opened(own_cluster)
    assert_serves(storage)
    assert storage.close(20_000)
    restart(own_cluster)
    storage = opened(own_cluster)
    assert_serves(storage)
    assert storage.close(20_000)


def test_a_store_opens_beside_one_that_was_kept_and_both_serve(
    own_cluster: MooncakeCluster, client: Client
) -> None:
    kept = opened(own_cluster)
    assert_serves(kept)
    restart(own_cluster)
    storage = opened(own_cluster)
    assert client.replaced == 1
    assert_serves(storage)
    assert_serves(kept)
    assert storage.close(20_000)
    assert kept.close(20_000)


def test_stores_that_open_at_once_replace_the_client_once(
    own_cluster: MooncakeCluster, client: Client
) -> None:
    restart(own_cluster)
    with ThreadPoolExecutor(4) as threads:
        storages = list(threads.map(lambda _: opened(own_cluster), range(4)))
    assert client.replaced == 1
    for storage in storages:
        assert_serves(storage)
        assert storage.close(20_000)


@pytest.mark.parametrize("first", ["read", "create"])
def test_whatever_the_first_call_is_it_is_tried_again(
    own_cluster: MooncakeCluster, client: Client, first: str
) -> None:
    fs = MooncakeFileSystem(own_cluster.address, skip_instance_cache=True)
    store = MooncakeStore(fs, "first")
    restart(own_cluster)
    if first == "read":
        assert store.read("a", soon()) is None
    else:
        store.create("a", b"whole", soon())
        assert store.read("a", soon()) == b"whole"
    assert client.replaced == 1
    store.close()


def test_no_number_of_restarts_is_too_many(
    own_cluster: MooncakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_MOST_RETIRED", 1)
    for n in range(3):
        restart(own_cluster)
        storage = opened(own_cluster)
        assert client.replaced == n + 1
        assert_serves(storage)
        assert storage.close(20_000)
        use(client)


def test_a_master_that_is_gone_is_refused_and_replaces_nothing(
    own_cluster: MooncakeCluster, client: Client
) -> None:
    own_cluster.stop()
    with pytest.raises(StorageUnavailable, match=str(NO_MASTER)):
        opened(own_cluster)
    assert client.replaced == 0
    restart(own_cluster)
    storage = opened(own_cluster)
    assert_serves(storage)
    assert storage.close(20_000)


def test_this_process_gives_its_memory_once_however_often_the_master_restarts(
    own_cluster: MooncakeCluster,
) -> None:
    options = {"master": own_cluster.address, "segment_bytes": 32 << 20}
    client = connect(find_cluster(options))
    assert segments(own_cluster) == 2
    for n in range(3):
        use(client)
        restart(own_cluster)
        assert client.size("a") == NO_MASTER
        assert client.renew(n, soon())
        assert client.replaced == n + 1
        until(lambda: segments(own_cluster) == 2)
        time.sleep(CLIENT_TTL_S + 1)  # by now a second one would be there, or the first one gone
        assert segments(own_cluster) == 2
    disconnect(client)
    assert segments(own_cluster) == 1


def test_a_call_that_hangs_in_a_replaced_client_stops_no_replacement(
    own_cluster: MooncakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_MOST_RETIRED", 2)
    hung = client._current()
    with hung.inside():
        for n in range(4):
            assert client.renew(n, soon())
            assert client.replaced == n + 1
        assert hung in client._retired
        assert len(client._retired) == 2
    block = bytearray(4096)
    address = int(Pages.from_buffers([block], writable=True).addresses[0, 0])
    assert client.register(address, len(block))
    client.unregister(address)


def test_where_calls_hang_in_all_replaced_clients_nothing_breaks(
    own_cluster: MooncakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_MOST_RETIRED", 1)
    with client._current().inside():
        assert client.renew(0, soon())
        assert not client.renew(1, soon())
        assert client.exists(["a"], soon()) == [0]
    assert client.renew(1, soon())


def test_nobody_waits_for_a_replacement_beyond_the_own_deadline(
    own_cluster: MooncakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, go, knock = tmp_path / "begun", tmp_path / "go", tmp_path / "knock.py"
    knock.write_text(SLOW_KNOCK.format(begun=str(begun), go=str(go)))
    monkeypatch.setattr(reach, "_KNOCK", knock)
    monkeypatch.setattr(reach, "_KNOCK_S", 20.0)
    monkeypatch.setattr(client_module, "_REPLACE_S", 0.0)
    monkeypatch.setattr(client_module, "_FAILURES", 1)
    block = bytearray(os.urandom(4096))
    pages = Pages.from_buffers([block], writable=True)
    address = int(pages.addresses[0, 0])
    assert client.put_from(["a"], pages, soon()) == [0]
    with ThreadPoolExecutor(2) as threads:
        renewal = threads.submit(client.renew, 0, Deadline.after_ms(60_000))
        try:
            until(begun.exists)
            began = time.monotonic()
            assert client.register(address, len(block))
            client.unregister(address)
            assert client.register(address, len(block))
            assert client.get_into(["a"], pages, soon()) == [len(block)]
            own_cluster.holders[0].kill()
            own_cluster.holders[0].wait()
            assert client.get_into(["a"], pages, soon()) == [TRANSFER_FAILED]
            assert not threads.submit(client.renew, 0, Deadline.after_ms(300)).result(20)
            assert time.monotonic() - began < 10
            assert not renewal.done()
        finally:
            go.touch()
        assert renewal.result(20)
    assert client.replaced == 1
    assert client.reaches(pages)
    client.unregister(address)


def test_a_renewal_that_fails_puts_off_no_other_replacement(
    own_cluster: MooncakeCluster, client: Client
) -> None:
    client._failures, tried_s = 2, client._tried_s
    assert not client.renew(0, Deadline.after_ms(1))
    assert (client._failures, client._tried_s) == (2, tried_s)


def test_a_client_that_is_closed_during_a_replacement_is_not_replaced(
    own_cluster: MooncakeCluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    begun, go, knock = tmp_path / "begun", tmp_path / "go", tmp_path / "knock.py"
    knock.write_text(SLOW_KNOCK.format(begun=str(begun), go=str(go)))
    client = connect(find_cluster({"master": own_cluster.address}))
    with ThreadPoolExecutor(1) as threads, monkeypatch.context() as patch:
        patch.setattr(reach, "_KNOCK", knock)
        renewal = threads.submit(client.renew, 0, Deadline.after_ms(60_000))
        until(begun.exists)
        patch.undo()
        try:
            disconnect(client)
        finally:
            go.touch()
        assert not renewal.result(20)
    assert client.replaced == 0
