"""Made-up conversations, and how many of their blocks a cache finds."""

from __future__ import annotations

import json
from pathlib import Path

from hicache_storage.tools.replay_front import Front

Chains = list[list[int]]
USERS, TURNS = 9, 8


def conversations() -> Chains:
    """A system prompt of 6 blocks, then 5 new blocks a turn."""
    history = {user: list(range(6)) for user in range(USERS)}
    chains, fresh = [], 6
    for _ in range(TURNS):
        for user in range(USERS):
            history[user] += range(fresh, fresh + 5)
            fresh += 5
            chains.append(list(history[user]))
    return chains


def unbounded_hits(chains: Chains) -> int:
    """Prefix block hits if nothing is ever lost."""
    seen: set[int] = set()
    hits = 0
    for chain in chains:
        hits += next((n for n, block in enumerate(chain) if block not in seen), len(chain))
        seen.update(chain)
    return hits


def lru_hits(chains: Chains, capacity: int) -> int:
    """Prefix block hits of an exact LRU that touches a chain from its end."""
    lru, hits = Front(capacity), 0
    for chain in chains:
        hits += lru.prefix(chain)
        lru.touch(chain)
    return hits


def write_trace(path: Path, chains: Chains) -> Path:
    """A trace of one request a chain."""
    path.write_text("".join(json.dumps({"hash_ids": chain}) + "\n" for chain in chains))
    return path
