"""Which memory is moved in place: registered, and by TCP in large pieces alone."""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterator

import numpy as np
import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.mooncake.backend import MooncakeOptions, MooncakeStore, open_mooncake
from hicache_backends.mooncake.filesystem import MooncakeFileSystem
from hicache_backends.pages import Pages
from hicache_backends.storage import UNKNOWN
from hicache_backends.testing.canaries import NAMESPACE, digests_of
from tests.backends.mooncake.cluster import MooncakeCluster

MIB = 1 << 20


@pytest.fixture
def store(cluster: MooncakeCluster) -> Iterator[MooncakeStore]:
    fs = MooncakeFileSystem(cluster.address, skip_instance_cache=True)
    store = MooncakeStore(fs, uuid.uuid4().hex)
    yield store
    store.close()


def block(size: int) -> tuple[np.ndarray, int]:
    memory = np.random.default_rng(1).integers(0, 255, size, np.uint8)
    return memory, memory.__array_interface__["data"][0]


def test_by_tcp_only_large_pieces_are_moved_in_place(store: MooncakeStore) -> None:
    memory, start = block(4 * MIB)

    def pages(piece_bytes: int, pieces: int) -> Pages:
        where = [start + i * piece_bytes for i in range(pieces)]
        return Pages.from_pointers(where, [piece_bytes] * pieces, pieces=pieces, keep=(memory,))

    assert not store.reaches(pages(2 * MIB, 1))
    assert store.register(start, memory.nbytes)
    assert store.reaches(pages(2 * MIB, 1))
    assert store.reaches(pages(2 * MIB, 2))
    assert store.reaches(pages(MIB // 4, 2))
    assert not store.reaches(pages(MIB // 8, 1))
    assert not store.reaches(pages(MIB // 8, 2))
    store.unregister(start)
    assert not store.reaches(pages(2 * MIB, 1))


def test_by_rdma_every_registered_page_is_moved_in_place(
    store: MooncakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, start = block(64)
    page = Pages.from_pointers([start], [64], pieces=1, keep=(memory,))
    monkeypatch.setattr(store, "_rdma", True)
    assert not store.reaches(page)
    assert store.register(start, memory.nbytes)
    assert store.reaches(page)
    store.unregister(start)


@pytest.mark.parametrize("registered", [True, False])
def test_large_pages_come_back_in_place_and_copied(
    cluster: MooncakeCluster, registered: bool
) -> None:
    namespace = dataclasses.replace(NAMESPACE, page_bytes=2 * MIB)
    options = MooncakeOptions(cluster.address, prefix=uuid.uuid4().hex)
    storage = open_mooncake(namespace, options)
    memory, start = block(6 * MIB)
    pages = Pages.from_pointers(
        [start + i * 2 * MIB for i in range(3)], [2 * MIB] * 3, pieces=1, keep=(memory,)
    )
    digests, written = digests_of("a", "b", "c"), memory.copy()
    if registered:
        assert storage.register(start, memory.nbytes)
    assert all(storage.put(digests, pages, [UNKNOWN] * 3, Deadline.after_ms(10_000)))
    memory[:] = 0
    assert all(storage.get(digests, pages, Deadline.after_ms(10_000)))
    assert np.array_equal(memory, written)
    if registered:
        storage.unregister(start)
    storage.remove(digests)
    assert storage.close()
