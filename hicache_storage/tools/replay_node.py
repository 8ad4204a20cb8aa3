"""One process of a replay: its own page store on the shared medium, told what to do by lines.

Standard input: the orders as one JSON line, then commands; standard output: one line a command.
Numbers separated by spaces: replay these requests, answered by how many. "resident": the blocks
in the own index. "end": the report. Pages never pass through these pipes.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from hicache_backends.errors import HiCacheError
from hicache_backends.identity import Namespace, page_digests
from hicache_backends.outcomes import Outcome, Reason
from hicache_backends.storage import PageStorage
from hicache_backends.table import open_storage
from hicache_storage.opening import join_registry
from hicache_storage.page_store import PageStore
from hicache_storage.tools.content import PageContent, page_key, page_memory
from hicache_storage.tools.line_process import reply
from hicache_storage.tools.replay_front import Front
from hicache_storage.tools.replay_plan import NodeOrders, NodeReport, replay_namespace
from hicache_storage.tools.traces import read_chains
from kvmanager.options import RegistryOptions

SLICE_BYTES = 256 << 20
"""Chains longer than this are replayed in slices, to bound the memory of a process."""


class Node:
    """Replays requests against a page store and compares every page that it reads."""

    def __init__(
        self,
        store: PageStore,
        storage: PageStorage,
        namespace: Namespace,
        longest: int,
        front_blocks: int = 0,
    ) -> None:
        """`longest`: blocks of the longest chain; `front_blocks`: held in front of the store."""
        self.report = NodeReport()
        self._store = store
        self._storage = storage
        self._front = Front(front_blocks) if front_blocks else None
        self._content = PageContent(namespace.page_bytes)
        self._fingerprint = namespace.fingerprint
        self._slice = min(longest, max(1, SLICE_BYTES // namespace.page_bytes))
        self._memory = page_memory(self._slice, namespace.page_bytes)
        self._rows = list(self._memory)

    def request(self, chain: Sequence[int]) -> None:
        """Look the chain up, read what is found, store the rest."""
        held = self._front.prefix(chain) if self._front else 0
        rest = chain[held:]
        read = self._load(rest) if rest else []
        prefix = read.index(False) if False in read else len(read)
        self._save(chain, held, [*read, *[False] * (len(rest) - len(read))])
        if self._front:
            self._front.touch(chain)
        self.report.requests += 1
        self.report.block_refs += len(chain)
        self.report.front_hits += held
        self.report.prefix_hits += held + prefix

    def resident(self, chains: Iterable[Sequence[int]]) -> list[int]:
        """The blocks of the chains that the own index holds."""
        blocks = list(dict.fromkeys(block for chain in chains for block in chain))
        present = self._storage.contains(page_digests(self._fingerprint, _keys(blocks)))
        return [block for block, there in zip(blocks, present, strict=True) if there]

    def _load(self, blocks: Sequence[int]) -> list[bool]:
        """Whether each block from the start was read right, as far as `exists` found them."""
        keys = _keys(blocks)
        began = time.perf_counter()
        found = self._store.exists(keys)
        self.report.exists_seconds += time.perf_counter() - began
        read: list[bool] = []
        for start in range(0, found, self._slice):
            end = min(found, start + self._slice)
            read += self._read(blocks[start:end], keys[start:end])
        if found < len(keys):
            first = slice(found, found + 1)
            self._count_misses(blocks[first], self._store.explain(keys[first]))
        return read

    def _read(self, blocks: Sequence[int], keys: list[str]) -> list[bool]:
        own = self._storage.contains(page_digests(self._fingerprint, keys))
        began = time.perf_counter()
        outcomes = self._store.get(keys, self._rows[: len(keys)])
        self.report.get_seconds += time.perf_counter() - began
        hit = np.fromiter(map(bool, outcomes), np.bool_, len(keys))
        wrong = self._content.wrong(blocks, self._memory[: len(keys)]) & hit
        self.report.wrong_pages += int(wrong.sum())
        self.report.wrong.update(blocks[i] for i in np.flatnonzero(wrong).tolist())
        self.report.remote_hits += int((hit & ~np.array(own)).sum())
        self._count_misses(blocks, outcomes)
        read: list[bool] = (hit & ~wrong).tolist()
        return read

    def _save(self, chain: Sequence[int], held: int, stored: Sequence[bool]) -> None:
        """Store what is not `stored` of the chain behind the `held` blocks, run by run."""
        for start, end in _runs(stored, self._slice):
            first = held + start
            blocks = chain[first : held + end]
            self._content.fill(blocks, self._memory[: len(blocks)])
            parent = page_key(chain[first - 1]) if first else None
            keys = _keys(blocks)
            began = time.perf_counter()
            outcomes = self._store.set(keys, self._rows[: len(keys)], parent=parent)
            self.report.set_seconds += time.perf_counter() - began
            kept = sum(o.ok for o in outcomes)
            existed = sum(o.existed for o in outcomes)
            self.report.pages_existed += existed
            self.report.pages_written += kept - existed
            self.report.set_failures += len(outcomes) - kept

    def _count_misses(self, blocks: Sequence[int], outcomes: Sequence[Outcome]) -> None:
        for block, outcome in zip(blocks, outcomes, strict=True):
            if not outcome.ok and outcome.reason:
                self.report.misses[outcome.reason.value] += 1
                if outcome.reason is Reason.CHECKSUM:
                    self.report.damaged.add(block)


def _keys(blocks: Sequence[int]) -> list[str]:
    return [page_key(block) for block in blocks]


def _runs(stored: Sequence[bool], longest: int) -> list[tuple[int, int]]:
    """Half-open ranges of what is not stored, each of at most `longest`."""
    runs: list[tuple[int, int]] = []
    for n, there in enumerate(stored):
        if there:
            continue
        if runs and runs[-1][1] == n and n - runs[-1][0] < longest:
            runs[-1] = (runs[-1][0], n + 1)
        else:
            runs.append((n, n + 1))
    return runs


def open_node(orders: NodeOrders) -> tuple[PageStore, PageStorage]:
    """The page store of this process on the shared medium."""
    namespace = replay_namespace(orders.block_bytes)
    endpoint = orders.registry
    storage = open_storage(orders.backend, namespace, orders.options, shared=endpoint is not None)
    if endpoint is None:
        return PageStore(storage, namespace), storage
    options = RegistryOptions(
        touch_interval_ms=orders.touch_interval_ms, embedded_dir=orders.registry_dir
    )
    registry = join_registry(endpoint, namespace, storage, options=options)
    return PageStore(storage, namespace, registry=registry), storage


def serve() -> None:
    """Obey until "end" or the end of the input."""
    orders = NodeOrders.from_json(json.loads(sys.stdin.readline()))
    chains = read_chains(Path(orders.trace))
    store, storage = open_node(orders)
    with store:
        namespace = replay_namespace(orders.block_bytes)
        longest = max(len(chain) for chain in chains)
        node = Node(store, storage, namespace, longest, orders.front_blocks)
        reply("ready")
        for line in sys.stdin:
            command = line.strip()
            if command == "resident":
                reply(json.dumps(node.resident(chains)))
            elif command == "end":
                reply(json.dumps(node.report.to_json()))
                return
            else:
                numbers = [int(n) for n in command.split()]
                for number in numbers:
                    node.request(chains[number])
                reply(str(len(numbers)))


if __name__ == "__main__":
    try:
        serve()
    except HiCacheError as error:
        sys.exit(f"{type(error).__name__}: {error}")
