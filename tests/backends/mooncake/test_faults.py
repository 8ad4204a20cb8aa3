"""Mooncake hurt in every way: calls return by their deadline, nothing wrong is served, and the
store goes on without a restart once the cluster does."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageHung, StorageUnavailable
from hicache_backends.mooncake import reach
from hicache_backends.mooncake.backend import MooncakeOptions, open_mooncake
from hicache_backends.objects.storage import ObjectStorage
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import (
    NAMESPACE,
    Target,
    assert_truthful,
    canary,
    digests_of,
    get,
    put,
    source,
)
from tests.backends.mooncake.cluster import CLIENT_TTL_S, MooncakeCluster, freeze

WRITER = Path(__file__).with_name("dying_writer.py")
DEADLINE_MS = 300.0
SLACK_S = 0.7
FULL_BYTES = 16 << 20
PAGES = digests_of(*range(8))


@pytest.fixture
def own_cluster(
    network: None, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[MooncakeCluster]:
    """A cluster to be hurt, its memory the parameter; its ports are nobody else's."""
    cluster = MooncakeCluster(tmp_path, port=50061, http_port=9013)
    cluster.start_master()
    cluster.start_holder(getattr(request, "param", 64 << 20))
    yield cluster
    cluster.stop()


@pytest.fixture
def storage(own_cluster: MooncakeCluster) -> Iterator[ObjectStorage]:
    storage = open_mooncake(NAMESPACE, MooncakeOptions(own_cluster.address))
    yield storage
    for process in [*own_cluster.holders, own_cluster.master]:
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGCONT)
    assert storage.close(timeout_ms=20_000)


@pytest.fixture
def whole(cluster: MooncakeCluster) -> Iterator[ObjectStorage]:
    """A store in the cluster that is shared, for tests that hurt nobody."""
    whole = open_mooncake(NAMESPACE, MooncakeOptions(cluster.address, prefix="dying"))
    yield whole
    assert whole.close(timeout_ms=20_000)


def in_time(call: Callable[[Deadline], list[Outcome]]) -> list[Outcome]:
    """The outcomes of a call, which came by its deadline; none where it was refused at once."""
    began = time.monotonic()
    try:
        outcomes = call(Deadline.after_ms(DEADLINE_MS))
    except StorageHung:
        outcomes = []
    assert time.monotonic() - began < DEADLINE_MS / 1000 + SLACK_S
    return outcomes


def read_in_time(storage: ObjectStorage, pages: list[bytes]) -> list[bool]:
    """Which pages were hits, each of them right."""
    target = Target(len(pages))
    outcomes = in_time(lambda by: storage.get(pages, target.pages, by))
    for i, outcome in enumerate(outcomes):
        assert not outcome.ok or target[i] == canary(pages[i])
    assert_truthful(outcomes, len(outcomes))
    return [outcome.ok for outcome in outcomes] or [False] * len(pages)


def write_in_time(storage: ObjectStorage, pages: list[bytes]) -> list[bool]:
    unknown = [UNKNOWN] * len(pages)
    outcomes = in_time(lambda by: storage.put(pages, source(pages), unknown, by))
    return [outcome.ok for outcome in outcomes] or [False] * len(pages)


def until(condition: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not recover"
        time.sleep(0.1)


def works_again(storage: ObjectStorage, name: str) -> Callable[[], bool]:
    pages = digests_of(*(f"{name} {i}" for i in range(4)))
    return lambda: all(write_in_time(storage, pages)) and all(read_in_time(storage, pages))


def test_a_killed_holder_costs_its_pages_and_no_more(
    own_cluster: MooncakeCluster, storage: ObjectStorage
) -> None:
    assert all(put(storage, PAGES))
    own_cluster.holders[0].kill()
    own_cluster.holders[0].wait()
    assert read_in_time(storage, PAGES) == [False] * 8
    write_in_time(storage, digests_of("x"))
    own_cluster.start_holder(64 << 20)
    until(works_again(storage, "after"), CLIENT_TTL_S + 20)
    until(lambda: not any(storage.contains(PAGES)), CLIENT_TTL_S + 20)
    assert all(put(storage, PAGES))
    assert get(storage, PAGES) == [True] * 8


def test_a_killed_master_is_missed_in_time_and_found_again_empty(
    own_cluster: MooncakeCluster, storage: ObjectStorage
) -> None:
    assert all(put(storage, PAGES))
    assert own_cluster.master is not None
    own_cluster.master.kill()
    own_cluster.master.wait()
    for _ in range(6):
        assert read_in_time(storage, PAGES) == [False] * 8
        assert write_in_time(storage, digests_of("x")) == [False]
    own_cluster.start_master()
    until(works_again(storage, "after"), 40)
    assert storage.contains(PAGES) == [False] * 8
    assert {o.reason for o in storage.get(PAGES, Target(8).pages, Deadline.after_ms(9000))} == {
        Reason.EVICTED
    }
    assert all(put(storage, PAGES))
    assert get(storage, PAGES) == [True] * 8


def test_a_frozen_master_is_missed_in_time_and_back_when_it_thaws(
    own_cluster: MooncakeCluster, storage: ObjectStorage
) -> None:
    assert all(put(storage, PAGES))
    assert own_cluster.master is not None
    freeze(own_cluster.master)
    for _ in range(6):
        assert read_in_time(storage, PAGES) == [False] * 8
        assert write_in_time(storage, digests_of("x")) == [False]
    own_cluster.master.send_signal(signal.SIGCONT)
    until(works_again(storage, "after"), 40)
    until(lambda: all(read_in_time(storage, PAGES)), 40)


def test_a_frozen_holder_is_missed_in_time_and_back_when_it_thaws(
    own_cluster: MooncakeCluster, storage: ObjectStorage
) -> None:
    assert all(put(storage, PAGES))
    freeze(own_cluster.holders[0])
    for _ in range(6):
        assert read_in_time(storage, PAGES) == [False] * 8
    own_cluster.holders[0].send_signal(signal.SIGCONT)
    until(works_again(storage, "after"), 40)


@pytest.mark.parametrize("own_cluster", [FULL_BYTES], indirect=True)
def test_a_full_cluster_refuses_or_evicts_and_what_it_took_is_right(
    own_cluster: MooncakeCluster, storage: ObjectStorage
) -> None:
    calls = 5 * FULL_BYTES // (4 * 128 * NAMESPACE.page_bytes)
    reasons: set[Reason | None] = set()
    for n in range(calls):
        pages = digests_of(*(f"{n} {i}" for i in range(128)))
        reasons |= {outcome.reason for outcome in put(storage, pages)}
    assert reasons <= {None, Reason.NO_SPACE}
    found = [get(storage, digests_of(*(f"{n} {i}" for i in range(128)))) for n in range(calls)]
    assert any(any(each) for each in found)
    assert not all(all(each) for each in found), "it was never full: the test shows nothing"
    until(works_again(storage, "after"), 10)


def test_a_key_whose_writer_died_is_not_called_stored_before_it_can_be_read(
    cluster: MooncakeCluster, whole: ObjectStorage
) -> None:
    page = digests_of("dying")
    key = f"dying/{whole._place.keys(page)[0]}"
    subprocess.run([sys.executable, str(WRITER), cluster.address, key], check=True, timeout=60)
    outcome = whole.put(page, source(page), [UNKNOWN], Deadline.after_ms(5000))[0]
    assert outcome.ok == get(whole, page)[0]
    assert outcome.ok or outcome.reason is Reason.BEING_WRITTEN
    assert all(put(whole, digests_of("another")))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_wrong_address_is_refused_in_seconds_and_freezes_nobody(
    network: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, frozen: bool
) -> None:
    monkeypatch.setattr(reach, "_KNOCK_S", 2.0)
    cluster = MooncakeCluster(tmp_path, port=50061, http_port=9013)
    if frozen:
        cluster.start_master()
        assert cluster.master is not None
        freeze(cluster.master)
    address = cluster.address if frozen else "127.0.0.1:1"
    gaps: list[float] = []
    done = threading.Event()

    def tick() -> None:
        last = time.monotonic()
        while not done.wait(0.01):
            gaps.append(time.monotonic() - last)
            last = time.monotonic()

    ticker = threading.Thread(target=tick)
    ticker.start()
    try:
        with pytest.raises(StorageUnavailable, match="master"):
            open_mooncake(NAMESPACE, MooncakeOptions(address))
    finally:
        done.set()
        ticker.join()
        cluster.stop()
    assert max(gaps, default=0) < 1.0


def test_clearing_removes_the_own_pages_and_nobody_elses(
    cluster: MooncakeCluster, whole: ObjectStorage
) -> None:
    other = open_mooncake(NAMESPACE, MooncakeOptions(cluster.address, prefix="other"))
    assert all(put(whole, PAGES))
    assert all(put(other, PAGES))
    assert all(whole.remove([entry.digest for entry in whole.entries()]))
    assert get(whole, PAGES) == [False] * 8
    assert get(other, PAGES) == [True] * 8
    assert other.close()
