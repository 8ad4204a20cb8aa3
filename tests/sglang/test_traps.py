"""What SGLang does to a backend that answers wrongly is bad; so each call answers rightly."""

from __future__ import annotations

import ctypes
import hashlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from sglang.srt.environ import envs
from sglang.srt.mem_cache.hicache_storage import HiCacheStorageExtraInfo, PoolName, PoolTransfer
from sglang.srt.mem_cache.utils import get_storage_hash_str
from sglang.srt.observability.metrics_collector import StorageMetrics

from hicache_backends.errors import HiCacheError, StorageUnavailable
from hicache_backends.native_calls import page_digests
from hicache_backends.storage import ROOT, UNKNOWN
from hicache_storage.page_store import PageStore
from hicache_storage.sglang import HiCacheL3
from tests.sglang.harness.tree import Flags, Ranks, Shape, Tree, tokens
from tests.sglang.plugin import extra_config

PAGE = 16


def hashes(count: int, start: int = 0) -> list[str]:
    """Page hashes of one chain."""
    return [hashlib.sha256(f"{start + n}".encode()).hexdigest() for n in range(count)]


def slots(count: int, first: int = 0) -> torch.Tensor:
    """Host indices of neighbouring pages."""
    return torch.arange(first * PAGE, (first + count) * PAGE)


def info(*before: str) -> HiCacheStorageExtraInfo:
    """What SGLang tells beside the keys, with the hashes before them."""
    return HiCacheStorageExtraInfo(prefix_keys=list(before))


@pytest.fixture
def tree(tmp_path: Path) -> Iterator[Tree]:
    with Tree(extra_config(tmp_path)) as made:
        made.controller.mem_pool_host.anchor_entry.host_pool.kv_buffer.normal_()
        yield made


@pytest.fixture
def backend(tree: Tree) -> Any:
    return tree.backend


def host_bytes(tree: Tree) -> torch.Tensor:
    """All bytes of the host pool."""
    pool = tree.controller.mem_pool_host.anchor_entry.host_pool
    copy: torch.Tensor = pool.kv_buffer.view(torch.uint8).clone()
    return copy


def test_a_page_that_is_there_already_is_stored(backend: Any) -> None:
    keys = hashes(200)
    assert backend.batch_set_v1(keys, slots(200), info()) == [True] * 200
    assert backend.batch_set_v1(keys, slots(200), info()) == [True] * 200
    assert backend.batch_exists(keys) == 200


def test_a_page_that_another_process_is_writing_counts_as_stored(tmp_path: Path) -> None:
    config = extra_config(tmp_path, shared=True)
    with Tree(config) as tree, Tree(config) as other:
        keys, barrier, results = hashes(128), threading.Barrier(2), []

        def store(backend: Any) -> None:
            barrier.wait()
            results.append(backend.batch_set_v1(keys, slots(128), info()))

        threads = [threading.Thread(target=store, args=(t.backend,)) for t in (tree, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert results == [[True] * 128] * 2
        assert tree.backend.batch_exists(keys) == other.backend.batch_exists(keys) == 128


def test_exists_counts_pages_from_the_start_up_to_the_first_hole(backend: Any) -> None:
    keys = hashes(20)
    backend.batch_set_v1(keys[:7] + keys[8:], slots(19), info())
    found = backend.batch_exists(keys)
    assert found == 7
    assert type(found) is int
    assert backend.batch_exists([]) == 0


@pytest.mark.parametrize("count", [1, 8, 17, 128])
def test_a_get_has_one_answer_a_key_and_touches_no_page_it_missed(tree: Tree, count: int) -> None:
    backend, keys = tree.backend, hashes(count)
    there = [n % 3 != 1 for n in range(count)]
    stored = [key for key, is_there in zip(keys, there, strict=True) if is_there]
    backend.batch_set_v1(stored, slots(len(stored)), info())
    before = host_bytes(tree)
    assert backend.batch_get_v1(keys, slots(count, first=200)) == there
    after = host_bytes(tree)
    source = 0
    for n in range(count):
        target = slice((200 + n) * PAGE, (201 + n) * PAGE)
        if there[n]:
            expected = before[:, source * PAGE : (source + 1) * PAGE]
            assert torch.equal(after[:, target], expected)
            source += 1
        else:
            assert torch.equal(after[:, target], before[:, target])
    assert torch.equal(after[:, : 200 * PAGE], before[:, : 200 * PAGE])


@pytest.mark.parametrize("call", ["batch_get_v1", "batch_set_v1"])
def test_indices_that_are_no_pages_are_misses_not_crashes(tree: Tree, call: str) -> None:
    run, keys, before = getattr(tree.backend, call), hashes(4), host_bytes(tree)
    size = tree.controller.mem_pool_host.anchor_entry.host_pool.size
    for wrong in (slots(3), slots(4) + 1, slots(4) - PAGE, slots(4) + size, slots(4)[:0]):
        assert run(keys, wrong) == [False] * 4
    assert torch.equal(host_bytes(tree), before)


@pytest.mark.parametrize("error", [RuntimeError("boom"), StorageUnavailable("gone"), OSError(5)])
def test_no_failure_reaches_sglangs_threads(
    tree: Tree, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise error

    for name in ("exists", "get", "set", "explain", "clear"):
        monkeypatch.setattr(PageStore, name, fail)
    backend, keys, tensor = tree.backend, hashes(2), torch.zeros(PAGE * 1024, dtype=torch.bfloat16)
    transfer = PoolTransfer(name=PoolName.KV, keys=keys, host_indices=slots(2))
    assert backend.batch_exists(keys) == 0
    assert backend.batch_get_v1(keys, slots(2)) == [False, False]
    assert backend.batch_set_v1(keys, slots(2)) == [False, False]
    assert backend.batch_get(keys, [tensor, tensor.clone()]) == [None, None]
    assert backend.batch_set(keys, [tensor, tensor]) is False
    assert backend.batch_exists_v2(keys, [transfer]).kv_hit_pages == 0
    assert backend.batch_get_v2([transfer]) == {PoolName.KV: [False, False]}
    assert backend.batch_set_v2([transfer]) == {PoolName.KV: [False, False]}
    assert backend.clear() is False
    monkeypatch.undo()
    assert backend.batch_set_v1(keys, slots(2)) == [True, True]


def test_prompts_are_served_after_storage_has_failed(
    tree: Tree, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_args: object, **_options: object) -> None:
        raise RuntimeError("boom")

    monkeypatch.setattr(PageStore, "set", fail)
    tree.insert(tokens(20))
    monkeypatch.undo()
    monkeypatch.setattr(PageStore, "get", fail)
    ids = tokens(20, seed=1)
    tree.insert(ids)
    tree.cache.reset()
    assert tree.prefetch(ids) == 0
    monkeypatch.undo()
    assert tree.prefetch(ids) == len(ids)


def test_statistics_are_sglangs_own_type_and_collected_once(tmp_path: Path) -> None:
    with Tree(extra_config(tmp_path)) as tree:
        tree.insert(tokens(20))
        assert tree.backend.get_stats() is None  # its metrics are off
        config = tree.controller.storage_config
        config.enable_storage_metrics = True
        config.extra_config = extra_config(tmp_path / "other")
        backend = HiCacheL3(config, {})
        backend.register_mem_pool_host(tree.controller.storage_host_pool)
        backend.get_stats()  # the self-test's page
        backend.batch_set_v1(hashes(5), slots(5), info())
        backend.batch_get_v1(hashes(5), slots(5))
        stats = backend.get_stats()
        backend.close()
    assert isinstance(stats, StorageMetrics)
    assert (stats.backup_pgs, stats.prefetch_pgs) == ([5], [5])
    assert stats.backup_bandwidth[0] > 0
    assert backend.get_stats() is None


def test_calls_before_registration_and_after_close_miss(tree: Tree, tmp_path: Path) -> None:
    config = tree.controller.storage_config
    config.extra_config = extra_config(tmp_path / "other")
    backend, keys = HiCacheL3(config, {}), hashes(3)
    for _ in ("before registration", "after close"):
        assert backend.batch_exists(keys) == 0
        assert backend.batch_get_v1(keys, slots(3)) == [False] * 3
        assert backend.batch_set_v1(keys, slots(3)) == [False] * 3
        assert backend.batch_get(keys, None) == [None] * 3
        assert backend.batch_exists_v2(keys, []).kv_hit_pages == 0
        assert backend.get_stats() is None
        backend.close()


def test_a_backend_is_made_whatever_sglang_passes_beside_its_configuration(
    tree: Tree, tmp_path: Path
) -> None:
    config = tree.controller.storage_config
    config.extra_config = extra_config(tmp_path / "other")
    passed: list[tuple[Any, ...]] = [(), ({},), (tree.controller.storage_host_pool, {})]
    for more in passed:
        HiCacheL3(config, *more).close()


def test_a_sets_prefix_keys_tell_the_parent_of_every_page(tree: Tree) -> None:
    whole = tokens(60)
    for pages in (20, 30, 60):  # a conversation that grows: three nodes of SGLang's tree
        tree.insert(whole[: pages * PAGE])
    store = tree.backend._pools.get("kv").store
    chain = page_digests(store.namespace.fingerprint, get_storage_hash_str(whole, None, PAGE))
    parents = {entry.digest: entry.parent for entry in store.storage.entries()}
    assert parents == dict(zip(chain, [ROOT, *chain], strict=False))


def test_prefix_keys_of_queries_are_never_used(backend: Any) -> None:
    keys, wrong = hashes(10), info(*hashes(3, start=500))
    backend.batch_set_v1(keys, slots(10), info())
    assert backend.batch_exists(keys, wrong) == 10
    assert backend.batch_get_v1(keys, slots(10), wrong) == [True] * 10
    store = backend._pools.get("kv").store
    digests = page_digests(store.namespace.fingerprint, keys)
    parents = {entry.digest: entry.parent for entry in store.storage.entries()}
    assert parents == dict(zip(digests, [ROOT, *digests], strict=False))


@pytest.mark.parametrize("told", [None, (None,), HiCacheStorageExtraInfo(prefix_keys=None)])
def test_a_parent_that_is_not_told_is_unknown(backend: Any, told: Any) -> None:
    extra = HiCacheStorageExtraInfo(prefix_keys=told) if isinstance(told, tuple) else told
    backend.batch_set_v1(hashes(1), slots(1), extra)
    (entry,) = backend._pools.get("kv").store.storage.entries()
    assert entry.parent == UNKNOWN


def test_a_set_has_copied_its_pages_when_it_returns(tree: Tree) -> None:
    backend, keys = tree.backend, hashes(10)
    pool = tree.controller.mem_pool_host.anchor_entry.host_pool
    before = host_bytes(tree)[:, : 10 * PAGE].clone()
    backend.batch_set_v1(keys, slots(10), info())
    pool.kv_buffer[:, : 10 * PAGE].zero_()
    assert backend.batch_get_v1(keys, slots(10)) == [True] * 10
    assert torch.equal(host_bytes(tree)[:, : 10 * PAGE], before)


def test_what_another_process_has_just_stored_is_found_at_once(tmp_path: Path) -> None:
    config, keys = extra_config(tmp_path, shared=True), hashes(30)
    with Tree(config) as tree, Tree(config) as other:
        for n in range(0, 30, 10):
            assert other.backend.batch_exists(keys) == n
            before = keys[n - 1 : n]
            tree.backend.batch_set_v1(keys[n : n + 10], slots(10), info(*before))
            assert other.backend.batch_exists(keys) == n + 10


def test_a_chain_of_a_hundred_thousand_pages_is_asked_for_quickly(tmp_path: Path) -> None:
    with Tree(extra_config(tmp_path, shared=True)) as tree:
        keys = hashes(100_000)
        tree.backend.batch_set_v1(keys[:128], slots(128), info())
        began = time.monotonic()
        assert tree.backend.batch_exists(keys) == 128
        assert time.monotonic() - began < 2.0


def test_a_dead_registry_holds_no_call_up(tmp_path: Path) -> None:
    endpoint = "redis://127.0.0.1:1"
    with Tree(extra_config(tmp_path, shared=True, global_kvmanager={"endpoint": endpoint})) as tree:
        keys, began = hashes(20), time.monotonic()
        assert tree.backend.batch_set_v1(keys, slots(20), info()) == [True] * 20
        assert tree.backend.batch_exists(keys) == 20
        assert tree.backend.batch_get_v1(keys, slots(20)) == [True] * 20
        assert time.monotonic() - began < 2.0


def test_draft_pages_come_as_tensors_beside_pages_by_index(backend: Any) -> None:
    keys = hashes(4)
    drafts = [f"{key}.draft" for key in keys]
    pages = [torch.full((PAGE * 64,), float(n), dtype=torch.bfloat16) for n in range(4)]
    assert backend.batch_set_v1(keys, slots(4), info()) == [True] * 4
    assert backend.batch_set(drafts, pages) is True
    back = backend.batch_get(drafts, [torch.empty_like(page) for page in pages])
    assert all(torch.equal(a, b) for a, b in zip(pages, back, strict=True))
    other_size = torch.empty(PAGE * 32, dtype=torch.bfloat16)
    assert backend.batch_get(drafts[:1], [other_size]) == [None]
    assert backend.batch_get(keys[:1], [torch.empty_like(pages[0])]) == [None]
    assert backend.batch_get_v1(keys, slots(4)) == [True] * 4


def test_keys_that_releases_leave_in_the_extra_config_are_known(tmp_path: Path) -> None:
    left = {"prefetch_timeout_max": 30, "tp_lcm_size": 2, "allocator": "default"}
    with Tree({**extra_config(tmp_path), **left}) as tree:
        assert tree.backend.batch_set_v1(hashes(1), slots(1), info()) == [True]


def test_a_misspelt_key_ends_the_start_and_names_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"nvmes.*nvme"):
        Tree({**extra_config(tmp_path), "nvmes": {}})


def test_a_failed_attach_is_clean_and_can_be_tried_again(tree: Tree, tmp_path: Path) -> None:
    assert tree.detach()[0]
    threads = threading.active_count()
    ok, message = tree.attach(extra_config(tmp_path / "x", nvme={"path": "/proc/nowhere"}))
    assert (ok, "/proc/nowhere" in message) == (False, True)
    assert threading.active_count() == threads
    assert tree.attach(extra_config(tmp_path / "x"))[0]
    assert tree.backend.batch_set_v1(hashes(2), slots(2), info()) == [True, True]


def test_pages_are_found_after_detaching_and_attaching_again(tree: Tree) -> None:
    ids = tokens(20)
    stored = tree.insert(ids)
    for _ in range(3):
        assert tree.detach()[0]
        assert tree.attach()[0]
        tree.cache.reset()
        tree.allocator.clear()
        assert tree.prefetch(ids) == len(ids)
    back = tree.load_back(ids)
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))


def test_threads_that_sglang_makes_anew_find_everything(tree: Tree) -> None:
    for seed in range(5):
        ids = tokens(20, seed=seed)
        tree.insert(ids)
        tree.cache.reset()  # ends its storage threads and starts others
        tree.allocator.clear()
        assert tree.prefetch(ids) == len(ids)
        tree.cache.reset()
        tree.allocator.clear()


def test_clear_removes_this_ranks_pages_and_no_others(tmp_path: Path) -> None:
    config, keys = extra_config(tmp_path, shared=True), hashes(20)
    with Tree(config) as tree, Tree(config, ranks=Ranks(1, 2)) as other:
        for each in (tree, other):
            each.backend.batch_set_v1(keys, slots(20), info())
        assert tree.cache.clear_storage_backend()
        assert tree.backend.batch_exists(keys) == 0
        assert other.backend.batch_exists(keys) == 20


def test_a_self_test_leaves_no_page_and_no_byte_behind(tree: Tree, tmp_path: Path) -> None:
    before, config = host_bytes(tree), tree.controller.storage_config
    config.extra_config = extra_config(tmp_path / "other")
    backend = HiCacheL3(config, {})
    backend.register_mem_pool_host(tree.controller.storage_host_pool)
    assert torch.equal(host_bytes(tree), before)
    assert backend._pools.get("kv").store.stats()["storage_pages"] == 0
    backend.close()


def test_the_start_says_what_is_in_use(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "hicache_storage")
    with Tree(extra_config(tmp_path, shared=True)):
        said = [r.getMessage() for r in caplog.records if "HiCache initialized" in r.getMessage()]
    assert len(said) == 1
    for part in ("backend nvme", "engine ", "I/O", "zero copy", "namespace ", "medium "):
        assert part in said[0]
    assert "capacity 1 GiB" in said[0]
    assert "self-test passed" in said[0]


def test_storage_that_returns_other_bytes_ends_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = PageStore.get

    def garbled(store: PageStore, keys: Any, pages: Any, **options: Any) -> Any:
        outcomes = real(store, keys, pages, **options)
        ctypes.memset(int(pages.addresses[0, 0]), 7, 3)
        return outcomes

    monkeypatch.setattr(PageStore, "get", garbled)
    with pytest.raises(HiCacheError, match="self-test failed at get"):
        Tree(extra_config(tmp_path))


@pytest.mark.parametrize("failure", ["0.05"])
def test_sglangs_failure_injector_finds_all_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE", failure)
    monkeypatch.setenv("SGLANG_TEST_HICACHE_BACKEND_RANDOM_DELAY", "0.001")
    assert envs.SGLANG_TEST_HICACHE_BACKEND_RANDOM_FAILURE.get() == float(failure)
    hits = 0
    with Tree(extra_config(tmp_path)) as tree:
        assert type(tree.backend).__name__ == "HiCacheStorageFailureInjector"
        for seed in range(20):
            ids = tokens(20, seed=seed)
            stored = tree.insert(ids, seed=seed)
            tree.cache.reset()
            tree.allocator.clear()
            if tree.prefetch(ids) == len(ids):
                hits += 1
                back = tree.load_back(ids)
                assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))
            tree.cache.reset()
            tree.allocator.clear()
    assert hits > 10


def test_host_memory_that_only_stages_works_as_well(tmp_path: Path) -> None:
    ids, flags = tokens(20), Flags(host_memory_mode="buffer_only")
    with Tree(extra_config(tmp_path), Shape()) as server:
        stored = server.insert(ids)
    with Tree(extra_config(tmp_path), flags=flags) as other:
        assert other.prefetch(ids) == len(ids)
    assert stored
