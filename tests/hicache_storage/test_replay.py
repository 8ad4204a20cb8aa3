from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from hicache_backends.errors import ConfigError, StorageError
from hicache_backends.nvme import NvmeOptions
from hicache_storage.cli.app import build
from hicache_storage.tools.content import PageContent, page_key, page_memory
from hicache_storage.tools.line_process import LineProcess
from hicache_storage.tools.replay import replay
from hicache_storage.tools.replay_corrupt import asked_again
from hicache_storage.tools.replay_plan import (
    ReplayPlan,
    ReplayResult,
    Sizes,
    pages_of,
    replay_namespace,
)
from hicache_storage.tools.tool_store import open_tool_store
from tests.hicache_storage.chains import (
    TURNS,
    USERS,
    conversations,
    lru_hits,
    unbounded_hits,
    write_trace,
)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("trace")
    return write_trace(directory / "conversations.jsonl", conversations())


@pytest.fixture(scope="module")
def shared(trace: Path) -> ReplayResult:
    """Two processes, one after the other, nothing evicted."""
    return replay(ReplayPlan(trace, nodes=2))


def test_two_processes_find_exactly_the_prefixes_that_exist(shared: ReplayResult) -> None:
    chains = conversations()
    assert shared.total.requests == len(chains)
    assert shared.total.block_refs == sum(map(len, chains))
    assert shared.unique_blocks == len({block for chain in chains for block in chain})
    assert shared.total.prefix_hits == unbounded_hits(chains)
    assert shared.total.wrong_pages == 0


def test_pages_of_the_other_process_are_found_and_none_is_written_twice(
    shared: ReplayResult,
) -> None:
    assert all(node.remote_hits > 0 for node in shared.nodes)
    assert shared.total.remote_hits < shared.total.prefix_hits
    assert shared.total.pages_written == shared.resident_pages == shared.unique_blocks
    assert shared.total.set_failures == 0
    assert shared.stranded_pages == 0


def test_one_process_alone_finds_the_same_and_nothing_remote(trace: Path) -> None:
    result = replay(ReplayPlan(trace))
    assert result.total.prefix_hits == unbounded_hits(conversations())
    assert result.total.remote_hits == 0


def test_a_small_capacity_hits_about_as_often_as_an_exact_lru(trace: Path) -> None:
    chains = conversations()
    result = replay(ReplayPlan(trace, capacity="128"))
    exact = lru_hits(chains, 128)
    assert exact < unbounded_hits(chains), "the capacity has to hurt"
    assert abs(result.total.prefix_hits - exact) / result.total.block_refs < 0.05
    assert result.resident_pages <= 128
    assert result.stranded_pages == 0
    assert result.total.misses["evicted"] > 0


def test_a_front_keeps_hits_from_the_store_and_strands_nothing(trace: Path) -> None:
    chains = conversations()
    result = replay(ReplayPlan(trace, capacity="128", front="40"))
    assert result.total.front_hits == lru_hits(chains, 40)
    assert result.total.prefix_hits >= result.total.front_hits
    assert result.total.wrong_pages == 0
    assert result.stranded_pages == 0


def test_processes_at_their_own_pace_never_read_a_wrong_page(trace: Path) -> None:
    seen: list[int] = []
    result = replay(ReplayPlan(trace, nodes=3, concurrent=True), seen.append)
    assert sum(seen) == result.total.requests == USERS * TURNS
    assert result.total.wrong_pages == 0
    assert result.total.prefix_hits > 0
    assert result.stranded_pages == 0


@pytest.mark.parametrize("nodes", [1, 2])
def test_every_flipped_bit_is_noticed_and_nothing_wrong_is_served(trace: Path, nodes: int) -> None:
    result = replay(ReplayPlan(trace, nodes=nodes, corrupt=20))
    assert result.corrupted_pages == 20
    assert result.to_json()["checksum_misses"] == 20
    assert result.total.wrong_pages == 0
    assert result.resident_pages == result.unique_blocks, "bad pages are written again"


def test_pages_outlive_the_processes_in_a_directory_that_is_kept(
    trace: Path, tmp_path: Path
) -> None:
    replay(ReplayPlan(trace, directory=tmp_path / "kept"))
    again = replay(ReplayPlan(trace, directory=tmp_path / "kept"))
    assert again.total.prefix_hits == again.total.block_refs
    assert again.total.pages_written == 0


def test_a_wrong_page_fails_the_command_which_names_its_block(trace: Path, tmp_path: Path) -> None:
    namespace, memory = replay_namespace(4096), page_memory(2, 4096)
    PageContent(4096).fill([900, 901], memory)  # of no block of the trace
    store, _ = open_tool_store(namespace, NvmeOptions((str(tmp_path),)))
    with store:
        assert all(store.set([page_key(0), page_key(1)], list(memory)))
    done = CliRunner().invoke(build(), ["replay", str(trace), "--dir", str(tmp_path), "--json"])
    assert done.exit_code == 1, done.output
    wrong = json.loads(done.stdout)["wrong_pages"]
    assert wrong >= 2
    assert f"{wrong:,} wrong page(s) were read, of 2 block(s): 0, 1" in done.stderr


def test_the_temporary_directory_is_gone_afterwards(
    trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    replay(ReplayPlan(trace))
    assert not list(tmp_path.iterdir())


def test_the_blocks_to_damage_are_those_that_the_store_is_asked_for_again() -> None:
    chains = [[1, 2, 3], [1, 2, 4], [1, 2, 3], [1, 5], [1, 2, 3], [1, 2]]
    room = Sizes(nodes=1, front=0, store=99)
    assert asked_again(chains, 2, room) == [1, 2, 3], "soonest first"
    assert asked_again(chains[:5], 2, room) == [1, 2, 3], "those found once or twice last"
    assert asked_again(chains, 2, Sizes(1, 2, 99)) == [3, 2], "1 and 2 are in front at first"
    assert asked_again(chains, 2, Sizes(1, 0, 3)) == [1, 2], "3 is evicted before"


def test_amounts_are_pages_or_percentages() -> None:
    assert pages_of("250", 1000, "capacity") == 250
    assert pages_of("2.5%", 1000, "capacity") == 25
    assert pages_of("0.01%", 1000, "capacity") == 1
    for bad in ("", "%", "ten", "0", "-5", "0%", "1e400%", "nan%"):
        with pytest.raises(ConfigError, match="capacity"):
            pages_of(bad, 1000, "capacity")


def test_a_process_that_dies_ends_the_replay_with_its_status(tmp_path: Path) -> None:
    bad = tmp_path / "file"
    bad.write_text("no directory")
    trace = tmp_path / "t.jsonl"
    trace.write_text('{"hash_ids": [1]}')
    with LineProcess.of_module("a child", "hicache_storage.tools.replay_node") as child:
        child.send('{"trace": "' + str(trace) + '"}')
        with pytest.raises(StorageError, match="a child ended with status"):
            child.answer()


def test_the_command_prints_the_published_keys(trace: Path) -> None:
    done = CliRunner().invoke(build(), ["replay", str(trace), "--block-bytes", "8KiB", "--json"])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    published = (
        "requests block_refs unique_blocks prefix_hits front_hits remote_hits wrong_pages "
        "stranded_pages checksum_misses seconds misses"
    )
    assert set(published.split()) <= set(figures)
    assert figures["prefix_hits"] == unbounded_hits(conversations())


@pytest.fixture(scope="module", autouse=True)
def no_process_left() -> Iterator[None]:
    """Every test's child processes end with it."""
    yield
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    names = [Path(f"/proc/{child}/cmdline").read_text() for child in children]
    assert not [name for name in names if "replay_node" in name]


def test_any_backend_is_replayed_with_options_of_its_own(trace: Path) -> None:
    options = ["--backend", "memory", "--option", "capacity=200KiB", "--json"]
    done = CliRunner().invoke(build(), ["replay", str(trace), *options])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    assert 0 < figures["prefix_hits"] < unbounded_hits(conversations())
    assert figures["wrong_pages"] == 0


def test_two_processes_share_nothing_where_each_has_a_path_of_its_own(
    trace: Path, tmp_path: Path
) -> None:
    paths = tuple(str(tmp_path / name) for name in "ab")
    result = replay(ReplayPlan(trace, nodes=2, paths=paths))
    assert result.total.remote_hits == 0
    assert result.total.wrong_pages == 0
    assert all(list(Path(path).glob("*/*/seg-*.data")) for path in paths)


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        (["--backend", "memory", "--path", "/a"], "takes no path"),
        (["--backend", "memory", "--corrupt", "1"], "corrupt"),
        (["--backend", "mem"], "did you mean 'memory'"),
        (["--option", "io_mode"], "name=value"),
        (["--option", "io_moed=direct"], "did you mean 'io_mode'"),
        (["--backend", "3fs"], "is not on 3FS"),
    ],
)
def test_a_backend_that_cannot_be_had_is_an_error_before_any_process_starts(
    trace: Path, arguments: list[str], match: str
) -> None:
    done = CliRunner().invoke(build(), ["replay", str(trace), *arguments])
    assert done.exit_code
    assert match in str(done.exception) + done.output


@pytest.mark.parametrize("wrong", [{"capacity": "0"}, {"front": "nan%"}, {"block_bytes": 10 << 40}])
def test_a_plan_is_refused_before_anything_is_read_or_started(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong)).replace("_", " ")):
        ReplayPlan(Path("absent.jsonl"), **wrong)
