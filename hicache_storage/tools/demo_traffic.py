"""Traffic without an end: one process of a deployment, as an engine would be.

Conversations follow from the clock alone. So all processes serve the same ones at the same time,
each at random, and find each other's pages without knowing of each other.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hicache_backends.errors import ConfigError
from hicache_storage.tools.demo import PAGE_TOKENS, DemoPlan

if TYPE_CHECKING:
    from hicache_storage.config import Config

TURN_S = 10.0
"""A conversation has a turn so often."""
SYSTEM_PROMPTS = 4
REPORT_S = 5.0
_OF_CONVERSATIONS = 1 << 48
"""Ids of pages from here on are of one conversation's own; below it of system prompts."""


@dataclass(frozen=True, slots=True)
class TrafficPlan:
    """`demo`: how large and how many the conversations are; its `directory` is the store's.
    `environment`: more of the configuration, as in every process."""

    demo: DemoPlan
    tenant: str = "default"
    capacity: str = "1GiB"
    requests_per_s: float = 2.0
    environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.demo.directory is None:
            raise ConfigError("--forever needs --dir: a directory that the processes share")
        if not self.requests_per_s > 0:
            raise ConfigError(f"requests per second must be above 0, not {self.requests_per_s}")

    def config(self) -> Config:
        """As a file would say it."""
        from hicache_storage.config import load_config

        return load_config(
            {
                "nvme": {
                    "path": str(self.demo.directory),
                    "capacity": self.capacity,
                    "page_size": PAGE_TOKENS,
                },
                "global_kvmanager": {
                    "enabled": True,
                    "endpoint": self.demo.endpoint,
                    "namespace": self.tenant,
                },
                "identity": {
                    "model": "demo",
                    "revision": "content-1",
                    "kv_dtype": "uint8",
                    "layout": "block",
                    "page_bytes": self.demo.page_bytes,
                },
            },
            env=self.environment,
        )


def alive(plan: DemoPlan, now_s: float) -> list[list[int]]:
    """The chain of page ids of each conversation that goes on at a time, as long as it is then."""
    life_s = plan.turns * TURN_S
    newest = int(now_s * plan.users / life_s)
    chains = []
    for number in range(newest - plan.users + 1, newest + 1):
        age_s = now_s - number * life_s / plan.users
        turns = min(int(age_s / TURN_S) + 1, plan.turns)
        chains.append(_chain(plan, number, turns))
    return chains


def serve(
    plan: TrafficPlan,
    report: Callable[[dict[str, Any]], None],
    again: Callable[[float], bool],
) -> None:
    """Serve requests while `again`, which waits for so many seconds, says so. `report` is told the
    counts since the start every `REPORT_S`. Raises ConfigError, StorageError."""
    from hicache_storage.opening import open_page_store
    from hicache_storage.tools.replay_node import Node

    config = plan.config()
    namespace = config.namespace()
    longest = plan.demo.system_pages + plan.demo.turns * plan.demo.turn_pages
    with open_page_store(config, namespace) as store:
        node = Node(store, store.storage, namespace, longest)
        for chain in _requests(plan, again):
            if chain is not None:
                node.request(chain)
            else:
                report(_figures(node.report.to_json()))


def _requests(plan: TrafficPlan, again: Callable[[float], bool]) -> Iterator[list[int] | None]:
    """Chains to ask for, at the plan's rate; None when it is time to report."""
    reported_s = time.monotonic()
    while again(random.expovariate(plan.requests_per_s)):
        yield random.choice(alive(plan.demo, time.time()))  # noqa: S311 - the same
        if time.monotonic() - reported_s > REPORT_S:
            reported_s = time.monotonic()
            yield None
    yield None


def _chain(plan: DemoPlan, number: int, turns: int) -> list[int]:
    pages = turns * plan.turn_pages
    system = (number % SYSTEM_PROMPTS) * plan.system_pages
    own = _OF_CONVERSATIONS + number * plan.turns * plan.turn_pages
    return [*range(system, system + plan.system_pages), *range(own, own + pages)]


def _figures(counted: dict[str, Any]) -> dict[str, Any]:
    wanted = ("requests", "block_refs", "prefix_hits", "remote_hits", "pages_written")
    figures = {name: counted[name] for name in (*wanted, "set_failures", "wrong_pages")}
    return {**figures, "misses": dict(counted["misses"])}
