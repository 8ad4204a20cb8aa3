"""Drives the controller of whichever older release is first on the path: see `old.run_old`."""

from __future__ import annotations

import collections
import contextlib
import importlib
import inspect
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import distributed

PAGE_SIZE = 16
TOKENS = 8192
WAIT_S = 20.0
METHODS = (
    *("exists", "get", "set", "clear", "close"),
    *("batch_exists", "batch_get", "batch_set"),
    *("batch_get_v1", "batch_set_v1", "batch_exists_v2", "batch_get_v2", "batch_set_v2"),
)


class _Nothing:
    """A CUDA event or stream of old code, without CUDA."""

    def __init__(self, *_args: Any, **_kwargs: Any) -> None: ...

    def __getattr__(self, _name: str) -> Callable[..., bool]:
        return lambda *_args, **_kwargs: True


def main() -> None:
    """Read an order from standard input, write the report as the last line."""
    order = json.load(sys.stdin)
    dead: list[str] = []
    threading.excepthook = lambda died: dead.append(died.thread.name if died.thread else "?")
    with TemporaryDirectory() as directory, _one_rank(Path(directory)) as group:
        controller, host = _build(order, group)
        calls = _count_calls(controller.storage_backend)
        report = _round_trip(controller, host, order["pages"])
        if close := getattr(controller.storage_backend, "close", None):
            close()
    report |= {"calls": calls, "dead_threads": dead}
    sys.stdout.write(json.dumps(report) + "\n")
    sys.stdout.flush()
    os._exit(0)  # the controller's threads have no end of their own in the oldest releases


@contextlib.contextmanager
def _one_rank(directory: Path) -> Any:
    """A process group of one, and answers for what asks SGLang's own groups for a rank."""
    _import_anyway()
    store = f"file://{directory / 'rendezvous'}"
    distributed.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    controllers = importlib.import_module("sglang.srt.managers.cache_controller")
    answers = {
        "is_dp_attention_enabled": False,
        "get_tensor_model_parallel_rank": 0,
        "get_tensor_model_parallel_world_size": 1,
        "get_pipeline_model_parallel_rank": 0,
        "get_pipeline_model_parallel_world_size": 1,
    }
    for name, answer in answers.items():
        if hasattr(controllers, name):
            setattr(controllers, name, lambda answer=answer: answer)
    arguments = importlib.import_module("sglang.srt.server_args")
    if publish := getattr(arguments, "set_global_server_args_for_scheduler", None):
        publish(arguments.ServerArgs(model_path="dummy", device="cpu"))
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError):
            context = importlib.import_module("sglang.srt.runtime_context")
            ranks = {"tp_rank": 0, "tp_size": 1, "pp_rank": 0, "pp_size": 1}
            stack.enter_context(context.get_parallel().override(**ranks))
        yield distributed.new_group([0], backend="gloo")


def _import_anyway() -> None:
    """Old code registers models that today's transformers knows, and takes CUDA for granted."""
    from transformers.models.auto.configuration_auto import _LazyConfigMapping

    register = _LazyConfigMapping.register
    _LazyConfigMapping.register = lambda self, key, value, exist_ok=True: register(
        self, key, value, exist_ok=True
    )
    torch.cuda.Event = torch.cuda.Stream = _Nothing


def _build(order: dict[str, Any], group: Any) -> tuple[Any, Any]:
    """A controller with storage attached, and its host pool."""
    pools = importlib.import_module("sglang.srt.mem_cache.memory_pool")
    device = pools.MHATokenToKVPool(
        size=TOKENS,
        page_size=PAGE_SIZE,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=64,
        layer_num=4,
        device="cpu",
        enable_memory_saver=False,
    )
    allocator = _find("PagedTokenToKVPoolAllocator", "allocator", "allocator.paged")(
        TOKENS,
        page_size=PAGE_SIZE,
        dtype=torch.bfloat16,
        device="cpu",
        kvcache=device,
        need_sort=False,
    )
    host = _find("MHATokenToKVPoolHost", "memory_pool_host", "pool_host.mha")(
        device, 2.0, 0, PAGE_SIZE, order["layout"], pin_memory=False
    )
    controllers = importlib.import_module("sglang.srt.managers.cache_controller")
    controller = controllers.HiCacheController(
        allocator,
        host,
        PAGE_SIZE,
        group,
        load_cache_event=threading.Event(),
        write_policy="write_through",
        io_backend="kernel",
        storage_backend="dynamic",
        prefetch_threshold=PAGE_SIZE,
        model_name=order["model_name"],
        storage_backend_extra_config=order["extra_config"],
    )
    return controller, host


def _find(name: str, *modules: str) -> Any:
    for module in modules:
        with contextlib.suppress(ImportError, AttributeError):
            return getattr(importlib.import_module(f"sglang.srt.mem_cache.{module}"), name)
    raise LookupError(f"this release has no {name}")


def _count_calls(backend: Any) -> dict[str, int]:
    calls: collections.Counter[str] = collections.Counter()

    def counted(name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return method(*args, **kwargs)

        return call

    for name in METHODS:
        if hasattr(backend, name):
            setattr(backend, name, counted(name, getattr(backend, name)))
    return calls


def _round_trip(controller: Any, host: Any, pages: int) -> dict[str, Any]:
    ids = [i * 7919 % 50_000 for i in range(pages * PAGE_SIZE)]
    source = host.alloc(len(ids))
    host.kv_buffer.view(torch.uint8).random_(0, 256)
    gold = [_page(host, source, i).clone() for i in range(pages)]
    controller.write_storage(source, ids, _hashes(ids))
    stored = controller.ack_backup_queue.get(timeout=WAIT_S).completed_tokens
    target = host.alloc(len(ids))
    fetched = _fetch(controller, target, ids)
    equal = all(torch.equal(gold[i], _page(host, target, i)) for i in range(fetched // PAGE_SIZE))
    return {
        "stored_pages": stored // PAGE_SIZE,
        "fetched_pages": fetched // PAGE_SIZE,
        "equal": equal,
    }


def _page(host: Any, indices: Any, i: int) -> Any:
    return host.get_data_page(int(indices[i * PAGE_SIZE])).view(torch.uint8)


def _hashes(ids: list[int]) -> list[str]:
    """The chain of page hashes, by the release's own function."""
    one_hash = _find("get_hash_str", "hicache_storage", "utils")
    chain: list[str] = []
    for start in range(0, len(ids), PAGE_SIZE):
        chain.append(one_hash(ids[start : start + PAGE_SIZE], chain[-1] if chain else None))
    return chain


def _fetch(controller: Any, target: Any, ids: list[int]) -> int:
    """Prefetch a prompt to host memory; returns tokens that came."""
    if "host_indices" in inspect.signature(controller.prefetch).parameters:
        operation = controller.prefetch("request", target, ids, None)
        end = time.monotonic() + WAIT_S
        while operation.completed_tokens < len(ids) and time.monotonic() < end:
            time.sleep(0.01)
        return int(operation.completed_tokens)
    # Since 0.5.18 the scheduler gives memory to what was found, and hears of it batch by batch.
    controller.prefetch("request", ids, None)
    operation = controller.prefetch_hit_queue.get(timeout=WAIT_S)
    operation.host_indices = target[: operation.storage_hit_count]
    controller.prefetch_buffer.put(operation)
    completed = 0
    while not (ack := controller.ack_prefetch_queue.get(timeout=WAIT_S)).completed_req:
        completed = ack.completed_tokens or completed
    return completed


if __name__ == "__main__":
    main()
