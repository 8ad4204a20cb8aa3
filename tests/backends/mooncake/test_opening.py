"""The first processes of a namespace open it at once: one of them writes what says whose it is,
the others wait for that."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hicache_backends.errors import StorageUnavailable
from hicache_backends.mooncake.backend import MooncakeOptions, open_mooncake
from hicache_backends.mooncake.client import Client
from hicache_backends.mooncake.codes import NOT_READY
from hicache_backends.objects import storage as storage_module
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
from tests.backends.mooncake.cluster import MooncakeCluster, freeze

WRITER = Path(__file__).with_name("dying_writer.py")
DISCARD_S = 4


@pytest.fixture(scope="module")
def own_cluster(
    network: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MooncakeCluster]:
    cluster = MooncakeCluster(tmp_path_factory.mktemp("opening"), port=50081, http_port=9033)
    cluster.start_master(DISCARD_S)
    cluster.start_holder(64 << 20)
    yield cluster
    cluster.stop()


@pytest.fixture
def options(own_cluster: MooncakeCluster) -> MooncakeOptions:
    return MooncakeOptions(own_cluster.address, prefix=uuid.uuid4().hex)


def identity(options: MooncakeOptions) -> str:
    """The key of what the first process of a namespace writes."""
    return f"{options.prefix}/{NAMESPACE.fingerprint.hex()}/namespace.msgpack"


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 5
    while not condition():
        assert time.monotonic() < end, "it never came"
        time.sleep(0.01)


def test_a_process_that_opens_while_another_does_waits_for_what_that_one_writes(
    own_cluster: MooncakeCluster, client: Client, options: MooncakeOptions
) -> None:
    holder = own_cluster.holders[0]
    with ThreadPoolExecutor(2) as threads:
        freeze(holder)
        try:
            first = threads.submit(open_mooncake, NAMESPACE, options)
            until(lambda: client.size(identity(options)) == NOT_READY)
            second = threads.submit(open_mooncake, NAMESPACE, options)
            time.sleep(0.3)
            assert not first.done()
            assert not second.done()
        finally:
            holder.send_signal(signal.SIGCONT)
        one, other = first.result(20), second.result(20)
    pages = digests_of("a", "b")
    assert all(put(one, pages))
    assert get(other, pages) == [True, True]
    assert one.close(20_000)
    assert other.close(20_000)


def test_what_a_dead_process_began_is_named_and_written_anew_once_it_is_given_up(
    own_cluster: MooncakeCluster,
    client: Client,
    options: MooncakeOptions,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dead = [sys.executable, str(WRITER), own_cluster.address, identity(options)]
    subprocess.run(dead, check=True, timeout=60)
    assert client.size(identity(options)) == NOT_READY
    with monkeypatch.context() as patch:
        patch.setattr(storage_module, "_OPEN_MS", 1000.0)
        with pytest.raises(StorageUnavailable, match="-703"):
            open_mooncake(NAMESPACE, options)
    storage = open_mooncake(NAMESPACE, options)
    assert all(put(storage, digests_of("a")))
    assert storage.close(20_000)
