"""What SGLang calls between requests ends nothing, whatever other threads are at meanwhile."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from hicache_storage.sglang import HiCacheL3
from tests.sglang.harness.tree import Tree
from tests.sglang.plugin import extra_config

PAGE, PAGES = 16, 8
CYCLES = 6


def hashes(start: int) -> list[str]:
    return [hashlib.sha256(f"{start + n}".encode()).hexdigest() for n in range(PAGES)]


def slots(first: int) -> torch.Tensor:
    return torch.arange(first * PAGE, (first + PAGES) * PAGE)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def attached(tree: Tree, extra: dict[str, Any], *, metrics: bool = False) -> Any:
    config = tree.controller.storage_config
    config.extra_config, config.enable_storage_metrics = extra, metrics
    backend = HiCacheL3(config, {})
    backend.register_mem_pool_host(tree.controller.storage_host_pool)
    return backend


def test_metrics_of_another_shape_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Changed:
        def __init__(self, *, something_else: int) -> None: ...

    with Tree(extra_config(tmp_path)) as tree:
        backend = attached(tree, extra_config(tmp_path / "other"), metrics=True)
        monkeypatch.setattr(backend._pools.samples, "_metrics_class", Changed)
        backend.batch_set_v1(hashes(0), slots(0))
        assert backend.get_stats() is None
        assert backend.get_stats() is None
        backend.close()


@pytest.mark.parametrize("registry", [False, True], ids=["alone", "with a registry"])
def test_detaching_amid_calls_ends_them_well_and_leaves_nothing_open(
    tmp_path: Path, registry: bool
) -> None:
    extra = extra_config(tmp_path / "other")
    if registry:
        directory = tmp_path / "registry"
        extra["global_kvmanager"] = {"enabled": True, "endpoint": f"embedded:{directory}"}
    with Tree(extra_config(tmp_path)) as tree:
        attached(tree, extra).close()
        open_before, threads_before = open_files(), threading.active_count()
        for cycle in range(CYCLES):
            _detach_amid_calls(attached(tree, extra), cycle)
        assert open_files() <= open_before + 1
        assert threading.active_count() <= threads_before


def _detach_amid_calls(backend: Any, cycle: int) -> None:
    over, under_way = threading.Event(), threading.Barrier(4)
    wrong: list[str] = []

    def repeat(call: Callable[[int], object], check: Callable[[Any], bool]) -> None:
        n = 0
        while not over.is_set():
            try:
                answer = call(n)
                if not check(answer):
                    wrong.append(f"{answer!r}")
            except Exception as error:
                wrong.append(repr(error))
            n += 1
            if n == 20:
                under_way.wait(20)

    def keys(n: int) -> list[str]:
        return hashes(1000 * cycle + n % 40 * PAGES)

    def whole(answer: Any) -> bool:
        return len(answer) == PAGES and all(type(page) is bool for page in answer)

    calls: list[tuple[Callable[[int], object], Callable[[Any], bool]]] = [
        (lambda n: backend.batch_exists(keys(n)), lambda found: found in range(PAGES + 1)),
        (lambda n: backend.batch_get_v1(keys(n), slots(0)), whole),
        (lambda n: backend.batch_set_v1(keys(n), slots(PAGES)), whole),
    ]
    threads = [threading.Thread(target=repeat, args=call) for call in calls]
    for thread in threads:
        thread.start()
    under_way.wait(20)
    backend.close()
    backend.close()
    over.set()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert not wrong
    assert backend.batch_exists(keys(0)) == 0
    assert backend.batch_get_v1(keys(0), slots(0)) == [False] * PAGES
