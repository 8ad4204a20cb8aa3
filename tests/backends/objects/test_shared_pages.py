"""Processes that share a bucket and a real registry: found, deduplicated, healed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from hicache_backends.fsspec_store import FsspecOptions, open_fsspec
from hicache_backends.identity import page_digests
from hicache_backends.outcomes import Reason
from hicache_storage.opening import join_registry
from hicache_storage.page_store import PageStore
from tests.backends.objects.media import key
from tests.hicache_storage.test_shared_pages import NAMESPACE, REGISTRY, hashes, read, write
from tests.kvmanager.members import eventually
from tests.kvmanager.servers import BINARIES, Server

Open = Callable[..., PageStore]
KEYS = hashes(20)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    binary = BINARIES["valkey"]
    assert binary is not None, "the embedded extra is part of the development extras"
    (tmp_path / "valkey").mkdir()
    server = Server(binary, tmp_path / "valkey").start()
    yield server
    server.stop()


@pytest.fixture
def open_store(tmp_path: Path, server: Server) -> Iterator[Open]:
    opened: list[PageStore] = []

    def make(*, share: bool = True) -> PageStore:
        options = FsspecOptions(f"file://{tmp_path}/bucket")
        storage = open_fsspec(NAMESPACE, options, shared=share)
        registry = None
        if share:
            registry = join_registry(server.url, NAMESPACE, storage, options=REGISTRY)
            assert registry is not None
        opened.append(PageStore(storage, NAMESPACE, registry=registry))
        return opened[-1]

    yield make
    for store in opened:
        store.close()


def take_away(bucket: Path, name: str) -> None:
    digest = page_digests(NAMESPACE.fingerprint, [name])[0]
    (bucket / key(NAMESPACE, digest)).unlink()


def test_what_one_stores_the_other_finds_and_does_not_write_again(open_store: Open) -> None:
    a, b = open_store(), open_store()
    assert all(write(a, KEYS))
    assert b.exists(KEYS) == 20
    assert all(read(b, KEYS))
    assert [o.detail for o in write(b, KEYS)] == ["stored by another process"] * 20


def test_pages_that_nobody_told_of_are_told_of_when_they_are_stored_again(
    open_store: Open,
) -> None:
    quiet, b, c = open_store(share=False), open_store(), open_store()
    assert all(write(quiet, KEYS))
    assert c.exists(KEYS) == 0
    assert all(outcome.existed for outcome in write(b, KEYS))
    assert c.exists(KEYS) == 20
    assert all(read(c, KEYS))


def test_a_record_whose_object_is_gone_is_dropped_on_the_first_miss(
    open_store: Open, tmp_path: Path
) -> None:
    a, b = open_store(), open_store()
    assert all(write(a, KEYS))
    take_away(tmp_path / "bucket", KEYS[3])
    found = [o.ok for o in read(b, KEYS)]
    assert found == [i != 3 for i in range(20)]
    eventually(lambda: b.exists(KEYS) == 3)
    eventually(lambda: not a.storage.contains(page_digests(NAMESPACE.fingerprint, [KEYS[3]]))[0])
    assert all(write(b, KEYS))
    assert all(read(a, KEYS))
    assert a.exists(KEYS) == b.exists(KEYS) == 20


def test_the_owner_that_misses_its_own_page_tells_the_registry(
    open_store: Open, tmp_path: Path
) -> None:
    a, b = open_store(), open_store()
    assert all(write(a, KEYS))
    take_away(tmp_path / "bucket", KEYS[0])
    assert [o.reason for o in read(a, KEYS)][:2] == [Reason.EVICTED, None]
    eventually(lambda: b.exists(KEYS) == 0)
    assert a.explain(KEYS[:1])[0].reason is Reason.EVICTED


def test_a_registry_that_lost_everything_hears_of_the_pages_again(
    open_store: Open, server: Server
) -> None:
    a, b = open_store(), open_store()
    assert all(write(a, KEYS))
    server.client().flushall()
    eventually(lambda: b.exists(KEYS) == 20, 20)
    assert all(read(b, KEYS))


def test_without_the_registry_the_bucket_itself_is_asked(open_store: Open, server: Server) -> None:
    a = open_store(share=False)
    assert all(write(a, KEYS))
    b = open_store(share=False)
    assert b.exists(KEYS) == 20
    assert all(read(b, KEYS))
    assert all(outcome.existed for outcome in write(b, KEYS))


def test_clearing_takes_the_own_pages_only(open_store: Open) -> None:
    a, b = open_store(), open_store()
    others = hashes(5, "b")
    assert all(write(a, KEYS))
    assert all(write(b, others))
    assert a.clear() == 20
    assert b.exists(KEYS) == 0
    assert all(read(b, others))
