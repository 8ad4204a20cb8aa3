from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from hicache_backends.errors import ConfigError
from hicache_storage.cli.app import build
from hicache_storage.tools.demo import DemoPlan, conversations

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
