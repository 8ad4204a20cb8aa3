"""Two hosts of one cluster: each reads the other's pages by location through a mount that goes on
believing what it saw, and gives back the space of those that vanished."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.segment.format import Location
from hicache_backends.segment.segment import data_path, index_path
from hicache_backends.testing.canaries import (
    NAMESPACE,
    Target,
    canary,
    digests_of,
    get,
    put,
    soon,
)
from hicache_backends.threefs.backend import ThreeFsStorage, open_threefs
from tests.backends.threefs.test_death import wait_for
from tests.backends.threefs.worker import SLOT, ThreeFsWorker, options
from tests.threefs.stand_in import ThreeFs

Hosts = tuple[ThreeFs, ThreeFs]


@contextmanager
def opened(fs: ThreeFs, **more: Any) -> Iterator[ThreeFsStorage]:
    storage = open_threefs(NAMESPACE, options(fs.mount / "kv", **more), shared=True)
    yield storage
    storage.close()


def locations(outcomes: Sequence[Outcome]) -> list[bytes]:
    assert all(outcomes), outcomes
    return [outcome.location for outcome in outcomes]


def read_at(
    storage: ThreeFsStorage, pages: list[bytes], places: list[bytes], timeout_ms: float = 30_000
) -> list[Reason | None]:
    """Read by location, each page checked; why it was missed."""
    target = Target(len(pages))
    outcomes = storage.get(pages, target.pages, Deadline.after_ms(timeout_ms), places)
    for i, outcome in enumerate(outcomes):
        assert not outcome.ok or target[i] == canary(pages[i])
    return [outcome.reason for outcome in outcomes]


@pytest.mark.parametrize("engine", ["usrbio", "fuse"])
def test_a_page_is_read_on_the_other_host_as_soon_as_it_is_put(hosts: Hosts, engine: str) -> None:
    with opened(hosts[0], io_engine=engine) as a, opened(hosts[1], io_engine=engine) as b:
        for turn in range(12):  # through several segments
            pages = digests_of(*(f"{turn} {i}" for i in range(4)))
            begin = time.monotonic()
            assert read_at(b, pages, locations(put(a, pages))) == [None] * 4
            assert time.monotonic() - begin < 4, "nothing has to be waited for"


def test_a_slot_that_is_used_again_reads_as_what_it_holds_now(hosts: Hosts) -> None:
    """No page cache and no attribute of the other host counts."""
    with opened(hosts[0], pages=16) as a, opened(hosts[1], pages=16) as b:
        old = digests_of(*range(8))
        places = locations(put(a, old))
        assert read_at(b, old, places) == [None] * 8
        for turn in range(4):
            pages = digests_of(*(f"{turn} {i}" for i in range(8)))
            assert read_at(b, pages, locations(put(a, pages))) == [None] * 8
        assert {*read_at(b, old, places)} <= {None, Reason.STALE_LOCATION}
        assert Reason.STALE_LOCATION in read_at(b, old, places), "no slot was used again"


def test_a_name_that_the_mount_denies_is_waited_for_within_the_call(hosts: Hosts) -> None:
    """Where there is no time for that, the page is late and not gone."""
    with opened(hosts[0]) as a, opened(hosts[1]) as b:
        store, _ = a.stores[0]
        directory = f"{hosts[1].mount}/kv/{NAMESPACE.fingerprint.hex()}/{store.hex()}"
        names = [Path(data_path(directory, 1)), Path(index_path(directory, 1))]
        assert not any(name.exists() for name in names)
        pages = digests_of(*range(4))
        places = locations(put(a, pages))
        assert not any(name.exists() for name in names), "the mount does not deny them any more"
        begin = time.monotonic()
        assert read_at(b, pages, places, timeout_ms=300) == [Reason.TIMEOUT] * 4
        assert time.monotonic() - begin < 2
        assert read_at(b, pages, places) == [None] * 4


def test_a_location_that_points_nowhere_is_a_miss_at_once(hosts: Hosts) -> None:
    with opened(hosts[0]) as a, opened(hosts[1]) as b:
        pages = digests_of(*range(4))
        true = [Location.unpack(place) for place in locations(put(a, pages))]
        wrong = [
            replace(true[0], store=bytes(range(16))),
            replace(true[1], segment=77),
            replace(true[2], slot=1 << 20),
            replace(true[3], generation=true[3].generation + 1, slot=6),
        ]
        begin = time.monotonic()
        reasons = read_at(b, pages, [place.pack() for place in wrong])
        assert time.monotonic() - begin < 3
        assert reasons == [Reason.STALE_LOCATION] * 4


def chunks(fs: ThreeFs) -> int:
    """Bytes that the cluster holds of segments, not what the sizes of files say."""
    return sum(path.stat().st_blocks * 512 for path in (fs.backing / "kv").glob("*/*/seg-*.data"))


def test_pages_of_a_vanished_process_are_read_and_their_space_is_taken_under_pressure(
    hosts: Hosts,
) -> None:
    names = [str(i) for i in range(64)]
    pages = digests_of(*names)
    gone = ThreeFsWorker(hosts[0].mount / "kv", pages=64)
    places = [bytes.fromhex(place) for place in gone.ask("put", names)]
    assert all(places)
    with opened(hosts[1], pages=64) as b:
        gone.kill()
        assert read_at(b, pages, places) == [None] * 64
        full = chunks(hosts[1])
        assert full >= 64 * 8192
        new = digests_of(*(f"new {i}" for i in range(96)))
        for start in range(0, 96, 8):
            assert all(put(b, new[start : start + 8])), "room is made"
        assert b.stats()["reclaimed_segments"]
        assert chunks(hosts[1]) <= full + 8 * SLOT, "the chunks are given back"
        left = read_at(b, pages, places)
        assert {*left} <= {None, Reason.STALE_LOCATION}
        assert left.count(None) < 32
        truth = b.contains(new)
        assert get(b, new) == truth
        assert sum(truth) >= 48


def test_the_space_of_a_store_that_was_taken_over_is_given_back_as_its_pages_go(
    fs: ThreeFs,
) -> None:
    root = fs.mount / "kv"
    with opened(fs, pages=64) as storage:
        assert all(put(storage, digests_of(*range(64))))
    full = chunks(fs)
    with opened(fs, pages=64) as storage:
        assert storage.stats()["pages"] == 64
        evicted_for_nothing = 0
        for turn in range(16):
            new = digests_of(*(f"{turn} {i}" for i in range(8)))
            evicted_for_nothing += sum(not outcome for outcome in put(storage, new))
            assert chunks(fs) <= full + 16 * SLOT
        assert evicted_for_nothing <= 8
        assert int(storage.stats()["pages"]) >= 48
        stores = [path for path in root.glob("*/*") if path.is_dir()]
        wait_for(lambda: sum(path.exists() for path in stores) == 1, "the empty store's end")


def test_what_one_host_removes_is_gone_for_the_other(hosts: Hosts) -> None:
    with opened(hosts[0]) as a, opened(hosts[1]) as b:
        pages = digests_of(*range(4))
        places = locations(put(a, pages))
        assert read_at(b, pages, places) == [None] * 4
        assert all(a.remove(pages[:2]))
        assert all(put(a, digests_of("x", "y")))  # in their slots
        assert read_at(b, pages, places)[2:] == [None] * 2
        assert {*read_at(b, pages[:2], places[:2])} == {Reason.STALE_LOCATION}


def test_a_capacity_that_another_host_changed_is_believed(hosts: Hosts) -> None:
    with opened(hosts[0], pages=64):
        pass
    with opened(hosts[1], capacity_bytes=None) as b:
        assert b.stats()["capacity_bytes"] == 64 * SLOT
    with opened(hosts[0], pages=32):
        pass
    with opened(hosts[1], capacity_bytes=None) as b:
        assert b.stats()["capacity_bytes"] == 32 * SLOT


def test_targets_are_left_alone_once_a_call_is_over(hosts: Hosts) -> None:
    with opened(hosts[0]) as a, opened(hosts[1]) as b:
        pages = digests_of(*range(8))
        places = locations(put(a, pages))
        hosts[1].set(hang_share=1)
        target = Target(8)
        outcomes = b.get(pages, target.pages, Deadline.after_ms(100), places)
        assert {outcome.reason for outcome in outcomes} == {Reason.TIMEOUT}
        then = [target[i] for i in range(8)]
        hosts[1].reset()
        wait_for(lambda: b.stats()["ring_quarantined"] == 0, "the end of the reads")
        assert [target[i] for i in range(8)] == then
        assert b.get(pages, target.pages, soon(), places)
