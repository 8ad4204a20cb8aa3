"""A trace over two hosts: each finds exactly what either has stored, and reads nothing wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hicache_storage.chains import conversations, unbounded_hits, write_trace
from tests.threefs.replay import main


@pytest.mark.parametrize(
    ("io_engine", "block_bytes"), [("usrbio", 64 << 10), ("usrbio", 4096), ("fuse", 64 << 10)]
)
def test_two_hosts_find_exactly_the_prefixes_that_exist(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], io_engine: str, block_bytes: int
) -> None:
    chains = conversations()
    trace = write_trace(tmp_path / "trace.jsonl", chains)
    engine = ["--io-engine", io_engine]
    assert main([str(trace), *engine, "--block-bytes", str(block_bytes), "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    unique = len({block for chain in chains for block in chain})
    assert figures["requests"] == len(chains)
    assert figures["prefix_hits"] == unbounded_hits(chains)
    assert 0 < figures["remote_hits"] < figures["prefix_hits"]
    assert figures["wrong_pages"] == figures["set_failures"] == figures["stranded_pages"] == 0
    assert figures["pages_written"] == figures["resident_pages"] == unique


def test_a_small_capacity_is_kept_by_two_hosts_together(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chains = conversations()
    trace = write_trace(tmp_path / "trace.jsonl", chains)
    assert main([str(trace), "--block-bytes", "64KiB", "--capacity", "128", "--json"]) == 0
    figures = json.loads(capfd.readouterr().out)
    assert figures["resident_pages"] <= 128
    assert 0 < figures["prefix_hits"] < unbounded_hits(chains)
    assert figures["misses"]["evicted"] > 0
    assert figures["wrong_pages"] == figures["stranded_pages"] == 0
