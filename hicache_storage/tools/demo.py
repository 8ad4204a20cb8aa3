"""A small deployment at work: two processes, one directory, conversations that share prefixes.

Every conversation begins with the same system prompt and grows turn by turn; its turns reach the
two processes alternately, as behind a load balancer that knows nothing of caches.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hicache_backends.errors import ConfigError
from hicache_storage.config.fields import MAX_PAGE_BYTES
from hicache_storage.tools.replay import replay
from hicache_storage.tools.replay_plan import ReplayPlan, ReplayResult

PAGE_TOKENS = 64
PROCESSES = 2


@dataclass(frozen=True, slots=True)
class DemoPlan:
    """`page_bytes`: 1 MiB is 64 tokens of Llama-3-8B in bf16 on one of 8 tensor-parallel ranks.
    `prefill_tokens_per_s`: assumed speed of computing a prompt anew. `endpoint`: of the
    registry."""

    page_bytes: int = 1 << 20
    users: int = 8
    turns: int = 4
    system_pages: int = 24
    turn_pages: int = 10
    prefill_tokens_per_s: float = 8000
    directory: Path | None = None
    endpoint: str = "embedded"

    def __post_init__(self) -> None:
        for name in ("page_bytes", "users", "turns", "system_pages", "turn_pages"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.page_bytes > MAX_PAGE_BYTES:
            raise ConfigError(f"page_bytes must be at most 1 GiB, not {self.page_bytes}")
        if not self.prefill_tokens_per_s > 0:
            raise ConfigError("prefill tokens per second must be above 0")

    @property
    def requests(self) -> int:
        """One a turn of a user."""
        return self.users * self.turns


@dataclass(frozen=True, slots=True)
class DemoResult:
    """What the two processes did."""

    plan: DemoPlan
    replay: ReplayResult

    def to_json(self) -> dict[str, Any]:
        """The figures by name; sizes in bytes, times in seconds."""
        total = self.replay.total
        saved_tokens = total.prefix_hits * PAGE_TOKENS
        recompute = saved_tokens / self.plan.prefill_tokens_per_s
        loading = total.exists_seconds + total.get_seconds
        return {
            "requests": total.requests,
            "pages_referenced": total.block_refs,
            "pages_written": total.pages_written,
            "bytes_written": total.pages_written * self.plan.page_bytes,
            "pages_deduplicated": total.block_refs - total.pages_written,
            "prefix_hits": total.prefix_hits,
            "remote_hits": total.remote_hits,
            "wrong_pages": total.wrong_pages,
            "bytes_read": total.prefix_hits * self.plan.page_bytes,
            "loading_seconds": round(loading, 3),
            "writing_seconds": round(total.set_seconds, 3),
            "read_gib_per_s": round(
                total.prefix_hits * self.plan.page_bytes / 2**30 / max(total.get_seconds, 1e-9), 2
            ),
            "tokens_not_recomputed": saved_tokens,
            "assumed_prefill_tokens_per_s": self.plan.prefill_tokens_per_s,
            "recomputing_seconds": round(recompute, 3),
            "times_faster_than_recomputing": round(recompute / max(loading, 1e-9), 1),
            "seconds": round(self.replay.seconds, 3),
            "processes": [
                {
                    "requests": node.requests,
                    "pages_written": node.pages_written,
                    "prefix_hits": node.prefix_hits,
                    "remote_hits": node.remote_hits,
                }
                for node in self.replay.nodes
            ],
        }


def conversations(plan: DemoPlan) -> list[list[int]]:
    """The chain of page ids of each request, turn by turn. With an even number of users the order
    moves on by one a turn: a user's turns then go to the two processes alternately in any case."""
    system = list(range(plan.system_pages))
    history = {user: list(system) for user in range(plan.users)}
    fresh = plan.system_pages
    requests = []
    for turn in range(plan.turns):
        shift = turn if plan.users % PROCESSES == 0 else 0
        for user in ((n - shift) % plan.users for n in range(plan.users)):
            history[user] += range(fresh, fresh + plan.turn_pages)
            fresh += plan.turn_pages
            requests.append(list(history[user]))
    return requests


def demo(plan: DemoPlan, progress: Callable[[int], None] = lambda _requests: None) -> DemoResult:
    """Run the traffic through two processes with a registry."""
    with tempfile.TemporaryDirectory(prefix="hicache-demo-", dir=plan.directory) as directory:
        trace = Path(directory, "conversations.jsonl")
        with trace.open("w") as file:
            for number, chain in enumerate(conversations(plan)):
                tokens = len(chain) * PAGE_TOKENS
                request = {
                    "timestamp": number * 1000,
                    "input_length": tokens,
                    "output_length": 0,
                    "hash_ids": chain,
                }
                file.write(json.dumps(request) + "\n")
        done = replay(
            ReplayPlan(
                trace=trace,
                nodes=PROCESSES,
                block_bytes=plan.page_bytes,
                directory=Path(directory, "pages"),
                registry=plan.endpoint,
            ),
            progress,
        )
    return DemoResult(plan, done)
