"""Pages are read and stored on while Sentinels replace the registry's master."""

from __future__ import annotations

import tempfile
import threading
import time
from pathlib import Path

from hicache_backends.nvme import NvmeOptions
from hicache_backends.outcomes import Reason
from hicache_storage.page_store import PageStore
from hicache_storage.tools.tool_store import open_tool_store
from kvmanager.model import State
from kvmanager.options import RegistryOptions
from tests.hicache_storage.test_shared_pages import NAMESPACE, SLOT, hashes, read, write
from tests.kvmanager.conftest import binary_of
from tests.kvmanager.deployments import SentinelDeployment
from tests.kvmanager.members import eventually

REGISTRY = RegistryOptions(timeout_ms=300, connect_timeout_ms=300, heartbeat_ms=200, ttl_ms=2000)
PAGES = 64
MOST_P99_MS = 50


def open_store(root: Path, url: str) -> PageStore:
    options = NvmeOptions(
        (str(root),), capacity_bytes=4096 * SLOT, segment_bytes=64 * SLOT, free_floor_bytes=0
    )
    store, _ = open_tool_store(NAMESPACE, options, endpoint=url, registry_options=REGISTRY)
    return store


class Reader(threading.Thread):
    """Reads own pages, another store's pages and one that nobody has, over and over; `read` looks
    at every byte."""

    def __init__(self, store: PageStore, own: list[str], others: list[str]) -> None:
        super().__init__(daemon=True)
        self._store, self._own, self._others = store, own, others
        self.took_ms: list[float] = []
        self.own_missed = self.others_hit = self.others_missed = 0
        self.reasons: set[Reason | None] = set()
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        try:
            while not self._ended.wait(0.005):
                self._once()
        except BaseException as error:
            self.error = error

    def _once(self) -> None:
        began = time.monotonic()
        own = read(self._store, self._own, 200)
        others = read(self._store, self._others, 200)
        self.took_ms.append((time.monotonic() - began) * 1000 / 2)
        self.own_missed += sum(not outcome.ok for outcome in own)
        self.others_hit += sum(outcome.ok for outcome in others)
        missed = [outcome.reason for outcome in others if not outcome.ok]
        self.others_missed += len(missed)
        self.reasons |= set(missed)

    def end(self) -> None:
        self._ended.set()
        self.join(10)
        assert self.error is None, self.error


def test_own_pages_are_hits_throughout_and_others_again_afterwards(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="kv") as directory:
        deployment = SentinelDeployment(binary_of("valkey"), Path(directory))
        with deployment:
            url = deployment.start().url
            with open_store(tmp_path / "kv", url) as one, open_store(tmp_path / "kv", url) as two:
                mine, theirs, late = (hashes(PAGES, chain) for chain in ("mine", "theirs", "late"))
                assert all(write(one, mine))
                assert all(write(two, theirs))
                reader = Reader(one, mine, theirs)
                reader.start()
                eventually(lambda: reader.others_hit > 0)
                deployment.master().kill()
                eventually(lambda: reader.others_missed > 0, 10)
                assert all(write(one, late))  # nobody can be told now
                eventually(lambda: {state(one), state(two)} == {State.UP}, 30)
                hits = reader.others_hit
                eventually(lambda: reader.others_hit > hits + 10 * PAGES, 30)
                reader.end()
                assert all(read(two, late))
    assert reader.own_missed == 0
    assert reader.reasons <= {Reason.REGISTRY_DOWN, Reason.REGISTRY_REBUILDING}
    assert sorted(reader.took_ms)[len(reader.took_ms) * 99 // 100] < MOST_P99_MS


def state(store: PageStore) -> State:
    assert store.registry is not None
    return store.registry.state
