"""A call of SGLang's ends in time whatever it is about, and closing goes through to the end."""

from __future__ import annotations

import threading
import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hicache_backends.outcomes import TIMED_OUT, Outcome
from hicache_storage.options import StoreOptions
from hicache_storage.sglang import pool_store
from hicache_storage.sglang.host_pages import HostPages
from hicache_storage.sglang.identity import KV
from hicache_storage.sglang.pool_store import PoolStore
from hicache_storage.sglang.pools import Pools
from hicache_storage.sglang.samples import Samples
from hicache_storage.sglang.transfers import ALL, TRAILING, Transfers
from tests.hicache_storage.sglang_plugin.stand_ins import StandInPool, slots_of

LIMIT_MS = 150.0


class SlowStore:
    """Every call takes all the time that it has."""

    options = StoreOptions(timeout_ms=140.0)
    namespace = SimpleNamespace(page_bytes=1)

    def exists(self, keys: list[str], *, timeout_ms: float) -> int:
        time.sleep(timeout_ms / 1000)
        return len(keys)

    def present(self, keys: list[str], *, timeout_ms: float) -> list[bool]:
        return [True] * self.exists(keys, timeout_ms=timeout_ms)

    def get(self, keys: list[str], *_: Any, timeout_ms: float, **__: Any) -> list[Outcome]:
        return [TIMED_OUT] * self.exists(keys, timeout_ms=timeout_ms)

    set = get


def slow_pools(*names: str) -> Any:
    form = HostPages.of(StandInPool("page_first"))
    assert form is not None
    made: Any = SlowStore()
    stores = {name: PoolStore(made, form, Samples(False)) for name in names}
    return SimpleNamespace(get=stores.get, is_empty=lambda _: False)


def transfer(name: str, policy: str = ALL) -> Any:
    page_size = StandInPool("page_first").page_size
    indices = slots_of([0], page_size, np.int64)
    return SimpleNamespace(name=name, keys=["a"], hit_policy=policy, host_indices=indices)


@pytest.mark.parametrize("call", ["find", "get", "set"])
def test_a_call_about_many_pools_takes_no_longer_than_one_about_one(
    monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    monkeypatch.setattr(pool_store, "MAX_CALL_MS", LIMIT_MS)
    names = [KV, *map(str, range(8))]
    transfers = Transfers(slow_pools(*names))
    parts = [transfer(name, policy) for name in names[1:] for policy in (ALL, TRAILING)]
    began = time.monotonic()
    if call == "find":
        transfers.find(["a"], parts)
    else:
        until = pool_store.call_limit()
        for part in parts:
            if call == "get":
                assert transfers.get(part, until) == [False]
            else:
                assert transfers.set(part, None, until) == [False]
    assert time.monotonic() - began < LIMIT_MS / 1000 + 1, "each took a time of its own"


def bare_pools(*stores: Any) -> Pools:
    pools = Pools.__new__(Pools)
    pools._stores = dict(zip("abcdef", stores, strict=False))
    pools._by_tensor = {}
    pools._opening = threading.Lock()
    pools._figures = None
    return pools


def test_a_store_that_does_not_close_keeps_no_other_open() -> None:
    closed = []

    def store(name: str, *, fails: bool = False) -> Any:
        def close() -> None:
            closed.append(name)
            if fails:
                raise OSError("the medium is gone")

        return SimpleNamespace(close=close)

    pools = bare_pools(store("a"), store("b", fails=True), store("c", fails=True), store("d"))
    with pytest.raises(OSError, match="medium is gone"):
        pools.close()
    assert closed == ["a", "b", "c", "d"]
    assert pools.all() == []
