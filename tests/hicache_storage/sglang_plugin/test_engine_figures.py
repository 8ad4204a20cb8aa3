"""What SGLang counts in its files, read by one process of a server."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hicache_storage.sglang.engine_figures import EngineFigures
from kvmanager import figures

PAGE_TOKENS = 16
COUNTING = Path(__file__).with_name("counting_process.py")
Said = tuple[str, dict[str, str], float]
MODEL = {"model_name": "m"}


class Process:
    """One of SGLang's: real files, written by prometheus_client."""

    def __init__(self, directory: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(COUNTING)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(directory)},
        )

    def count(self, *said: Said) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(said) + "\n")
        self._process.stdin.flush()
        assert self._process.stdout.readline() == "counted\n"

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.kill()


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[Process]:
    process = Process(tmp_path)
    yield process
    process.kill()


@pytest.fixture
def told(tmp_path: Path) -> Iterator[EngineFigures]:
    made = EngineFigures(PAGE_TOKENS, str(tmp_path))
    yield made
    made.close()


def prompt(tokens: int, **sources: int) -> tuple[Said, ...]:
    """A request that ended, as 0.5.10 and later count it."""
    cached = [
        ("sglang:cached_tokens_total", {**MODEL, "cache_source": source}, n)
        for source, n in sources.items()
    ]
    return (("sglang:prompt_tokens_total", {**MODEL, "is_streaming": "false"}, tokens), *cached)


def test_prompt_tokens_are_told_by_where_their_kv_came_from(
    tokenizer: Process, told: EngineFigures
) -> None:
    tokenizer.count(*prompt(1000, device=300, host=200, storage=100))
    expected = {
        "tokens.l1": 300,
        "tokens.l2": 200,
        "tokens.l3": 100,
        "tokens.recomputed": 400,
    }
    assert told() == expected
    tokenizer.count(*prompt(50, storage_HiCacheL3=50))  # as up to 0.5.15
    assert told() == {**expected, "tokens.l3": 150}
    assert all(figures.valid(name) for name in told())


def test_the_counts_of_all_processes_are_summed_and_those_of_dead_ones_stay(
    tokenizer: Process, scheduler: Process, told: EngineFigures
) -> None:
    tokenizer.count(*prompt(100, device=100))
    scheduler.count(*prompt(100, device=60))
    scheduler.kill()
    assert told()["tokens.l1"] == 160
    assert told()["tokens.recomputed"] == 40


def test_a_release_that_does_not_tell_sources_apart_is_not_guessed(
    tokenizer: Process, told: EngineFigures
) -> None:
    tokenizer.count(
        ("sglang:prompt_tokens_total", MODEL, 1000), ("sglang:cached_tokens_total", MODEL, 10)
    )
    assert told() == {}


def test_prefetches_are_told_in_pages(scheduler: Process, told: EngineFigures) -> None:
    rank = {"tp_rank": "0"}
    scheduler.count(
        ("sglang:storage_prefetch_hit_tokens_total", rank, 160),
        ("sglang:prefetched_tokens_total", rank, 112),
        *(
            ("sglang:storage_prefetch_unfulfilled_tokens_total", {**rank, "reason": why}, n)
            for why, n in (("deadline", 32), ("host_capacity", 16), ("device_overlap", 16))
        ),
    )
    assert {name: n for name, n in told().items() if name.startswith("prefetch")} == {
        "prefetch.pages": 10,
        "prefetch.used": 6,
        "prefetch.wasted": 1,
        "prefetch.cancelled": 2,
        "prefetch.unfulfilled": 1,
    }


def test_prefill_speed_is_told_where_sglang_times_its_passes(
    scheduler: Process, told: EngineFigures
) -> None:
    computed = ("sglang:realtime_tokens_total", {"mode": "prefill_compute"}, 5000)
    scheduler.count(computed)
    assert "prefill.tokens" not in told()
    for category, seconds in (("extend", 1.5), ("decode", 8.0)):
        timed = ("sglang:forward_execution_seconds_total", {"category": category}, seconds)
        scheduler.count(timed)
    assert told()["prefill.tokens"] == 5000
    assert told()["prefill.us"] == 1_500_000


def test_one_process_of_a_server_tells_and_its_successor_only_what_comes_after(
    tmp_path: Path, tokenizer: Process, told: EngineFigures
) -> None:
    another = EngineFigures(PAGE_TOKENS, str(tmp_path))
    tokenizer.count(*prompt(100, host=40))
    assert told()["tokens.l2"] == 40
    assert another() == {}
    told.close()
    assert told() == {}
    assert another()["tokens.l2"] == 0
    tokenizer.count(*prompt(100, host=7))
    assert another()["tokens.l2"] == 7
    another.close()


def test_without_metrics_or_with_damaged_files_nothing_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert EngineFigures(PAGE_TOKENS)() == {}
    assert EngineFigures(PAGE_TOKENS, str(tmp_path / "nowhere"))() == {}
    told = EngineFigures(PAGE_TOKENS, str(tmp_path))
    for damage in (b"", b"\xff" * 100, b"\x40\0\0\0" + b"\xff" * 200):
        (tmp_path / "counter_1.db").write_bytes(damage)
        assert not any(told().values())
    told.close()


FORKING = """
import os, sys, time
from hicache_storage.sglang.engine_figures import EngineFigures
told = EngineFigures(16, sys.argv[1])
if not os.fork():
    print(os.getpid(), flush=True)
time.sleep(60)
"""


def test_a_child_does_not_keep_the_role_of_its_parent_that_died(
    tmp_path: Path, tokenizer: Process
) -> None:
    parent = subprocess.Popen(
        [sys.executable, "-c", FORKING, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    child = int(parent.stdout.readline())
    try:
        other = EngineFigures(PAGE_TOKENS, str(tmp_path))
        assert other() == {}, "the parent tells"
        parent.kill()
        parent.wait()
        other()
        tokenizer.count(*prompt(1000, device=300))
        assert other()["tokens.l1"] == 300
        other.close()
    finally:
        parent.kill()
        os.kill(child, signal.SIGKILL)
        parent.communicate()
