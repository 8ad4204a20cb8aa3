"""Two processes replay a trace over Mooncake: every prefix is found, and no page is wrong."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.mooncake.replay import command, environment
from tests.hicache_storage.chains import conversations, unbounded_hits, write_trace


def test_two_processes_find_every_prefix_and_no_wrong_page(
    cluster: MooncakeCluster, tmp_path: Path
) -> None:
    chains = conversations()
    trace = write_trace(tmp_path / "trace.jsonl", chains)
    replay = command(cluster, str(trace), "--nodes", "2", "--json")
    ran = subprocess.run(replay, capture_output=True, text=True, env=environment(), timeout=100)
    assert not ran.returncode, ran.stdout + ran.stderr
    figures = json.loads(ran.stdout)
    assert (figures["prefix_hits"], figures["wrong_pages"]) == (unbounded_hits(chains), 0)
    assert figures["remote_hits"] > 0
    assert figures["pages_written"] == len({block for chain in chains for block in chain})
    assert figures["set_failures"] == 0
