from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hicache_backends.errors import ConfigError
from hicache_storage.cli.app import build
from hicache_storage.tools.demo import DemoPlan, conversations
from hicache_storage.tools.demo_traffic import TURN_S, TrafficPlan, alive, serve

REPOSITORY = Path(__file__).parents[2]

SMALL = ["demo", "--page-bytes", "16KiB", "--users", "4", "--turns", "3"]


def test_the_demo_shows_pages_shared_between_its_processes() -> None:
    done = CliRunner().invoke(build(), [*SMALL, "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    chains = conversations(DemoPlan(users=4, turns=3))
    unique = len({page for chain in chains for page in chain})
    references = sum(map(len, chains))
    assert figures["pages_written"] == unique
    assert figures["pages_deduplicated"] == figures["prefix_hits"] == references - unique
    assert 0 < figures["remote_hits"] < figures["prefix_hits"]
    assert figures["wrong_pages"] == 0
    assert figures["recomputing_seconds"] == pytest.approx(
        figures["prefix_hits"] * 64 / figures["assumed_prefill_tokens_per_s"], abs=0.001
    )


def test_the_demo_tells_its_story_with_its_assumption() -> None:
    done = CliRunner().invoke(build(), [*SMALL, "--prefill-tokens-per-s", "1234"])
    assert done.exit_code == 0, done.output
    for word in ("written", "deduplicated", "found", "verified", "no page wrong", "1,234 tokens/s"):
        assert word in " ".join(done.stdout.split())


@pytest.mark.parametrize("users", [1, 2, 5, 8])
def test_every_conversation_changes_sides_each_turn(users: int) -> None:
    plan = DemoPlan(users=users, turns=4)
    last: dict[int, int] = {}
    for number, chain in enumerate(conversations(plan)):
        user = chain[plan.system_pages]  # the first page of its own names a conversation
        assert last.get(user) != number % 2
        last[user] = number % 2


def test_a_demo_without_users_or_speed_is_refused() -> None:
    with pytest.raises(ConfigError, match="users"):
        DemoPlan(users=0)
    with pytest.raises(ConfigError, match="prefill"):
        DemoPlan(prefill_tokens_per_s=0)


def test_conversations_follow_from_the_clock_alone() -> None:
    plan = DemoPlan(users=4, turns=3, system_pages=2, turn_pages=5)
    noon = 1_800_000_000.0
    chains = alive(plan, noon)
    assert chains == alive(plan, noon)
    assert len({chain[2] for chain in chains}) == plan.users  # each has pages of its own
    assert {len(chain) for chain in chains} <= {7, 12, 17}
    own = [page for chain in chains for page in chain[2:]]
    assert len(own) == len(set(own))
    later = {chain[2]: chain for chain in alive(plan, noon + TURN_S)}
    grown = [(chain, later[chain[2]]) for chain in chains if chain[2] in later]
    assert grown
    for before, after in grown:
        assert after[: len(before)] == before
        assert len(after) - len(before) in (0, plan.turn_pages)


def test_processes_without_an_end_find_each_others_pages(tmp_path: Path) -> None:
    demo = DemoPlan(page_bytes=4096, users=2, directory=tmp_path / "pages")
    plan = TrafficPlan(demo, capacity="16MiB", requests_per_s=1000)
    turns = [threading.Semaphore(1), threading.Semaphore(0)]
    told: list[list[dict[str, Any]]] = [[], []]

    def process(number: int) -> None:
        """20 requests, each after one of the other process."""
        left = iter(range(20))

        def again(_wait_s: float) -> bool:
            turns[1 - number].release()
            return next(left, None) is not None and turns[number].acquire(timeout=30)

        serve(plan, told[number].append, again)

    with ThreadPoolExecutor(2) as both:
        for done in [both.submit(process, number) for number in range(2)]:
            done.result(60)
    figures = [reports[-1] for reports in told]
    assert [f["requests"] for f in figures] == [20, 20]
    assert sum(f["remote_hits"] for f in figures) > 20
    assert not any(f["wrong_pages"] or f["set_failures"] for f in figures)


def test_a_demo_without_an_end_ends_when_it_is_told_to(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    command = [sys.executable, "-m", "hicache_storage", "demo", "--forever", "--page-bytes=4096"]
    command += [f"--dir={pages}", "--requests-per-s=50", "--capacity=16MiB"]
    path = {"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}"}
    with subprocess.Popen(command, env={**os.environ, **path}) as process:
        while not [*pages.glob("*/*/seg-*.data")]:
            assert process.poll() is None
            time.sleep(0.02)
        process.terminate()
        assert process.wait(20) == 128 + signal.SIGTERM


def test_a_demo_without_an_end_needs_a_directory_and_a_speed(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--dir"):
        TrafficPlan(DemoPlan())
    with pytest.raises(ConfigError, match="requests per second"):
        TrafficPlan(DemoPlan(directory=tmp_path), requests_per_s=0)
