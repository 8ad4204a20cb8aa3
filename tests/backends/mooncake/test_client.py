"""Mooncake's client object: shared, replaced where it keeps failing, and ended without harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageClosed
from hicache_backends.mooncake import client as client_module
from hicache_backends.mooncake import reach
from hicache_backends.mooncake.client import Client, connect, disconnect
from hicache_backends.mooncake.codes import MISSING, TRANSFER_FAILED
from hicache_backends.mooncake.options import LIMITS, find_cluster
from hicache_backends.pages import Pages
from tests.backends.mooncake.cluster import CLIENT_TTL_S, MooncakeCluster, freeze

LEAVER = Path(__file__).with_name("leaver.py")


@pytest.fixture
def own_cluster(network: None, tmp_path: Path) -> Iterator[MooncakeCluster]:
    cluster = MooncakeCluster(tmp_path, port=50071, http_port=9023)
    cluster.start_master()
    cluster.start_holder(64 << 20)
    yield cluster
    cluster.stop()


def soon() -> Deadline:
    return Deadline.after_ms(10_000)


def memory(size: int) -> tuple[bytearray, Pages]:
    block = bytearray(os.urandom(size))
    return block, Pages.from_buffers([block], writable=True)


def test_a_process_has_one_client_of_a_cluster(cluster: MooncakeCluster) -> None:
    client = connect(find_cluster({"master": cluster.address}))
    again = connect(client.cluster)
    assert again is client
    disconnect(again)
    _, pages = memory(100)
    assert client.put_from(["one client"], pages, soon()) == [0]
    disconnect(client)
    assert all(os.environ[name] for name in LIMITS)


def test_a_client_that_keeps_failing_for_a_peer_is_replaced_with_its_memory(
    own_cluster: MooncakeCluster, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_module, "_REPLACE_S", 0.0)
    block, pages = memory(4096)
    start = int(pages.addresses[0, 0])
    assert client.register(start, len(block))
    assert client.put_from(["a"], pages, soon()) == [0]
    own_cluster.holders[0].kill()
    own_cluster.holders[0].wait()
    codes = [client.get_into(["a"], pages, soon())[0] for _ in range(4)]
    assert TRANSFER_FAILED in codes
    assert {*codes} <= {TRANSFER_FAILED, MISSING}
    assert client.replaced == 1
    assert client.reaches(pages)
    own_cluster.start_holder(64 << 20)
    end = time.monotonic() + CLIENT_TTL_S + 20
    while client.put_from(["b"], pages, soon()) != [0]:
        assert time.monotonic() < end
        time.sleep(0.1)
    wanted = bytes(block)
    block[:] = bytes(len(block))
    assert client.get_into(["b"], pages, soon()) == [len(block)]
    assert block == wanted
    client.unregister(start)


def test_the_end_waits_for_calls_and_later_ones_are_refused(own_cluster: MooncakeCluster) -> None:
    client = connect(find_cluster({"master": own_cluster.address}))
    _, pages = memory(2 << 20)
    keys = [str(n) for n in range(4)]
    refused = threading.Event()

    def work() -> None:
        try:
            while True:
                client.put_from(keys[:1], pages, soon())
                client.exists(keys, soon())
                client.remove(keys, soon())
        except StorageClosed:
            refused.set()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    time.sleep(0.2)
    disconnect(client)
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive()
    assert refused.is_set()


def test_the_end_of_a_client_whose_master_is_frozen_freezes_nobody(
    own_cluster: MooncakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reach, "_KNOCK_S", 2.0)
    client = connect(find_cluster({"master": own_cluster.address}))
    assert own_cluster.master is not None
    freeze(own_cluster.master)
    gaps: list[float] = []
    done = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not done.wait(0.01):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticker = threading.Thread(target=tick)
    ticker.start()
    disconnect(client)
    done.set()
    ticker.join()
    own_cluster.master.send_signal(signal.SIGCONT)
    assert max(gaps) < 1.0


@pytest.mark.parametrize("hurt", [subprocess.Popen.kill, freeze])
def test_a_process_whose_master_is_silent_ends_by_itself(
    own_cluster: MooncakeCluster, hurt: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    leaver = subprocess.Popen(
        [sys.executable, str(LEAVER), own_cluster.address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert leaver.stdout is not None
    assert leaver.stdout.readline() == "stored\n"
    assert own_cluster.master is not None
    hurt(own_cluster.master)
    began = time.monotonic()
    said, _ = leaver.communicate("\n", timeout=60)
    assert said.startswith("closed")
    assert leaver.returncode == 0
    assert time.monotonic() - began < 30
