"""Threads and processes that change at the same time which segments there are."""

from __future__ import annotations

import errno
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageUnavailable
from hicache_backends.nvme import open_nvme
from hicache_backends.outcomes import Reason
from hicache_backends.segment import filing
from hicache_backends.segment.local_medium import LocalMedium
from hicache_backends.segment.medium import Limits
from hicache_backends.segment.reclaim import segment_file_bytes
from hicache_backends.segment.segment import Segment, create_segment, stored_bytes
from hicache_backends.segment.state import StoreState
from hicache_backends.segment.volume import Volume
from hicache_backends.testing.canaries import NAMESPACE, PAGE_BYTES, digests_of, get, put
from tests.backends.segment.worker import options


def test_nobody_counts_a_root_while_a_segment_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = []

    def create(*place: Any) -> None:
        try:  # as another process that opens the root would
            LocalMedium.open(str(tmp_path), Limits(), create=False, deadline=Deadline.after_ms(5))
        except StorageUnavailable:
            refused.append(True)
        create_segment(*place)

    monkeypatch.setattr(filing, "create_segment", create)
    storage = open_nvme(NAMESPACE, options(tmp_path, pages=20, segment_pages=8))
    put(storage, digests_of(*range(64)))
    assert len(refused) == 3
    assert segment_file_bytes(str(tmp_path)) == stored_bytes(20, PAGE_BYTES)
    storage.close()


def test_a_segment_that_cannot_be_made_takes_nothing_of_the_capacity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*place: Any) -> None:
        raise OSError(errno.EIO, "no")

    storage = open_nvme(NAMESPACE, options(tmp_path))
    monkeypatch.setattr(filing, "create_segment", fail)
    assert put(storage, digests_of("a"))[0].reason is Reason.NO_SPACE
    assert storage.stats()["used_bytes"] == 0
    storage.close()


def test_two_puts_that_find_the_store_deleted_start_it_anew_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = open_nvme(NAMESPACE, options(tmp_path))
    assert all(put(storage, digests_of("before")))
    shutil.rmtree(tmp_path / NAMESPACE.fingerprint.hex())
    both, first_is_done, calls = threading.Barrier(2), threading.Event(), [0]
    real = StoreState.segments_of

    def segments_of(state: StoreState, root: Volume) -> list[Segment]:
        calls[0] += 1
        late = calls[0] == 2
        try:
            both.wait(0.2)
        except threading.BrokenBarrierError:
            return real(state, root)  # the other one waits for its turn
        if late:
            first_is_done.wait(1)
        return real(state, root)

    monkeypatch.setattr(StoreState, "segments_of", segments_of)

    def store(page: bytes) -> bool:
        stored = put(storage, [page])[0].ok
        first_is_done.set()
        return stored

    pages = digests_of("x", "y")
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(store, pages)) == [True, True]
    assert get(storage, pages) == [True, True]
    assert len(list(tmp_path.rglob("*.data"))) == storage.stats()["segments"]
    storage.close()


@pytest.mark.parametrize("root_too", [True, False])
def test_stores_whose_root_is_emptied_or_deleted_start_anew_on_the_same_medium(
    tmp_path: Path, root_too: bool
) -> None:
    root = tmp_path / "kv"
    # with direct I/O the memory at hand decides which of two descriptors of a file is used
    buffered = replace(options(root), io_mode="buffered")
    first, second = (open_nvme(NAMESPACE, buffered, shared=True) for _ in range(2))
    pages, media = digests_of("before", "after", "beside"), first.media
    assert all(put(first, pages[:1]))
    shutil.rmtree(root)
    if not root_too:
        root.mkdir()
    assert get(first, pages[:1]) == [True], "an open file keeps what is in it"
    assert put(first, pages[1:2])[0].ok
    assert put(second, pages[2:])[0].ok
    assert first.stats()["capacity_bytes"] == options(root).capacity_bytes
    third = open_nvme(NAMESPACE, options(root), shared=True)
    assert media == first.media == second.media == third.media
    for storage in (first, second, third):
        storage.close()
    again = open_nvme(NAMESPACE, options(root))
    assert sorted(get(again, pages)) == [False, True, True]
    again.close()


def test_a_root_that_became_another_medium_is_left_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    root = tmp_path / "kv"
    storage = open_nvme(NAMESPACE, options(root))
    assert all(put(storage, digests_of("before")))
    shutil.rmtree(root)
    other = open_nvme(NAMESPACE, options(root))
    for page in digests_of(*range(3)):
        assert put(storage, [page])[0].reason is Reason.IO_ERROR
    assert caplog.text.count("cannot be made again") == 1
    assert put(other, digests_of("other"))[0].ok
    for each in (storage, other):
        each.close()
