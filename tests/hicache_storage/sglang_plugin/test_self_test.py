"""The test at the start: it finds what doesn't work, and leaves nothing behind."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import (
    ConfigError,
    HiCacheError,
    StorageClosed,
    StorageError,
    StorageUnavailable,
)
from hicache_backends.identity import Namespace
from hicache_backends.memory import MemoryStorage
from hicache_backends.outcomes import HIT, NEVER_WRITTEN, Outcome, Reason, miss
from hicache_backends.pages import Pages
from hicache_storage.config import load_config
from hicache_storage.opening import open_page_store
from hicache_storage.page_store import PageStore
from hicache_storage.sglang.host_pages import FlatPages, HostPages
from hicache_storage.sglang.pool_store import PoolStore
from hicache_storage.sglang.samples import Samples
from hicache_storage.sglang.self_test import self_test
from tests.hicache_storage.sglang_plugin.stand_ins import StandInFlatPool, StandInPool

KINDS = ["page_first", "layer_first", "flat"]


class Storage(MemoryStorage):
    """Memory that answers or fails as it's told to."""

    put_answer: Outcome | Exception | None = None
    get_answer: Outcome | Exception | None = None
    remove_error: Exception | None = None

    def put(
        self, digests: Sequence[bytes], pages: Pages, parents: Sequence[bytes], deadline: Deadline
    ) -> list[Outcome]:
        if isinstance(self.put_answer, Exception):
            raise self.put_answer
        stored = super().put(digests, pages, parents, deadline)
        return stored if self.put_answer is None else [self.put_answer]

    def get(
        self, digests: Sequence[bytes], pages: Pages, deadline: Deadline, *args: Any, **more: Any
    ) -> list[Outcome]:
        if isinstance(self.get_answer, Exception):
            raise self.get_answer
        if self.get_answer is not None:
            return [self.get_answer]
        return super().get(digests, pages, deadline, *args, **more)

    def remove(self, digests: Sequence[bytes]) -> list[Outcome]:
        if self.remove_error:
            raise self.remove_error
        return super().remove(digests)


@dataclasses.dataclass
class Bench:
    """A pool whose memory holds something, and the store of its pages."""

    pool: Any
    storage: Storage
    pages: PoolStore

    @property
    def content(self) -> bytes:
        return bytes(self.pool.memory.tobytes())

    def run(self) -> str:
        """The self-test; whatever comes of it, the pool's memory is as it was."""
        before = self.content
        assert any(before)
        try:
            return self_test(self.pages, self.pool)
        finally:
            assert self.content == before


@pytest.fixture(params=KINDS)
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    made = make_bench(request.param)
    yield made
    made.pages.close()


def make_bench(kind: str, mode: str = "read_write") -> Bench:
    pool: Any = StandInFlatPool() if kind == "flat" else StandInPool(kind)
    pool.memory[...] = np.arange(pool.memory.size).reshape(pool.memory.shape) % 251
    form = FlatPages(pool) if kind == "flat" else HostPages.of(pool)
    assert form is not None
    namespace = Namespace("m", "r", "float16", kind, 4, form.page_bytes)
    storage = Storage(namespace, 8)
    store = PageStore(storage, namespace)
    store.mode = mode
    return Bench(pool, storage, PoolStore(store, form, Samples(False)))


def test_a_working_store_passes_and_is_left_empty(bench: Bench) -> None:
    assert bench.run().startswith("self-test passed in ")
    assert list(bench.storage.entries()) == []
    assert bench.run().startswith("self-test passed in "), "as often as a pool is registered"


@pytest.mark.parametrize("reason", [Reason.NO_SPACE, Reason.QUOTA, Reason.TIMEOUT])
def test_a_store_that_takes_nothing_for_now_may_start(bench: Bench, reason: Reason) -> None:
    bench.storage.put_answer = miss(reason, "the disk is full")
    assert bench.run() == f"self-test stored nothing: {reason.value} the disk is full"
    assert list(bench.storage.entries()) == []


@pytest.mark.parametrize(
    ("step", "answer", "says"),
    [
        ("put", miss(Reason.IO_ERROR, "EIO /mnt/l3"), r"at set: io_error EIO /mnt/l3"),
        ("get", miss(Reason.CHECKSUM), r"at get: checksum"),
        ("get", NEVER_WRITTEN, r"at get: never_written"),
        ("get", HIT, r"at get: the bytes read aren't those written"),
    ],
)
def test_a_store_that_does_not_work_ends_the_start_and_says_what_to_do(
    bench: Bench, step: str, answer: Outcome, says: str
) -> None:
    setattr(bench.storage, f"{step}_answer", answer)
    with pytest.raises(StorageUnavailable, match=rf"{says}.*hicache-storage check"):
        bench.run()
    assert list(bench.storage.entries()) == []


def test_a_page_that_is_not_found_again_ends_the_start(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PageStore, "exists", lambda *_, **__: 0)
    with pytest.raises(StorageUnavailable, match="at exists: a page just stored isn't found"):
        bench.run()


@pytest.mark.parametrize("step", ["put", "get"])
@pytest.mark.parametrize("error", [StorageUnavailable("gone"), RuntimeError("a fault")])
@pytest.mark.parametrize("remove_error", [None, StorageClosed("closed")])
def test_a_store_that_raises_is_told_of_by_what_it_raised(
    bench: Bench, step: str, error: Exception, remove_error: Exception | None
) -> None:
    setattr(bench.storage, f"{step}_answer", error)
    bench.storage.remove_error = remove_error
    with pytest.raises(type(error), match=str(error)):
        bench.run()


def test_a_page_that_cannot_be_removed_is_in_nobody_s_way(bench: Bench) -> None:
    bench.storage.remove_error = StorageError("busy")
    assert bench.run().startswith("self-test passed in ")


@pytest.mark.parametrize("mode", ["read", "off"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_stores_nothing_is_not_tested(kind: str, mode: str) -> None:
    bench = make_bench(kind, mode)
    assert bench.run() == f"no self-test: mode is {mode}"
    bench.pages.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_pool_of_less_than_a_page_is_refused(kind: str) -> None:
    bench = make_bench(kind)
    bench.pool.size = 3
    with pytest.raises(ConfigError, match="holds 3 tokens: less than one page"):
        bench.run()
    bench.pages.close()


def test_on_a_disk_shared_by_a_registry_no_page_is_left(tmp_path: Path) -> None:
    pool = StandInPool(page_size=64, layers=8)
    pool.memory[...] = 7
    form = HostPages.of(pool)
    assert form is not None
    config = load_config(
        {
            "storage_backend": "nvme",
            "nvme": {"path": str(tmp_path / "root"), "capacity": "16MiB", "free_floor": 0},
            "global_kvmanager": {"enabled": True, "endpoint": "embedded"},
        },
        env={},
    )
    namespace = Namespace("m", "r", "float16", "page_first", 64, form.page_bytes)
    with (
        open_page_store(config, namespace) as store,
        open_page_store(config, namespace, rank=1) as other,
    ):
        probed: list[str] = []
        honest = store.set

        def watched(keys: Sequence[str], *args: Any, **more: Any) -> list[Outcome]:
            probed.extend(keys)
            return honest(keys, *args, **more)

        store.set = watched  # type: ignore[method-assign]  # to learn the probe's key
        assert self_test(PoolStore(store, form, Samples(False)), pool).startswith("self-test pas")
        assert len(probed) == 1
        assert list(store.storage.entries()) == []
        assert store.exists(probed) == other.exists(probed) == 0
    assert (pool.memory == 7).all()
    assert issubclass(StorageUnavailable, HiCacheError)
