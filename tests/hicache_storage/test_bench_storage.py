from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from hicache_backends.errors import ConfigError, StorageError
from hicache_backends.outcomes import NEVER_WRITTEN
from hicache_storage.cli.app import build
from hicache_storage.tools.bench_arena import all_ok, pieces_of
from hicache_storage.tools.bench_plan import BenchPlan, Comparison, alternate, bars, figure_at
from hicache_storage.tools.bench_storage import bench_storage
from hicache_storage.tools.content import page_key, page_memory
from hicache_storage.tools.sglang_file import MinimalFilePages
from hicache_storage.tools.spinner import Spinner

needs_fio = pytest.mark.skipif(
    shutil.which("fio") is None and not os.environ.get("CI"), reason="fio is not installed"
)


@pytest.fixture(autouse=True)
def _page_cache_of_others_is_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files are dropped from the cache one by one; the machine's whole cache is left alone."""
    monkeypatch.setattr("hicache_storage.tools.bench_arena._DROP_CACHES", tmp_path / "absent")


def small(directory: Path, **changes: object) -> BenchPlan:
    settings: dict[str, object] = {
        "page_bytes": 16 << 10,
        "pages": 256,
        "runs": 1,
        "scale_pages": 12_800,
        "window_seconds": 0.01,
        "exists_calls": 20,
    }
    return BenchPlan(directory, **{**settings, **changes})  # type: ignore[arg-type]  # by name


@needs_fio
def test_reads_and_writes_are_compared_with_both_rivals(tmp_path: Path) -> None:
    arguments = ["bench", "storage", "--dir", str(tmp_path), "--page-bytes", "16KiB"]
    more = ["--pages", "256", "--runs", "1", "--pieces", "2", "--json"]
    done = CliRunner().invoke(build(), [*arguments, *more])
    assert done.exit_code == 0, done.output
    figures = json.loads(done.stdout)
    for key in (
        "ratio_to_fio.read_cold",
        "ratio_to_fio.write",
        "ratio_to_sglang_file.read_cold",
        "ratio_to_sglang_file.read_warm",
        "pieces_ratio",
    ):
        assert (figure_at(figures, key) or 0) > 0, key
    assert "HiCacheFile" in figures["sglang_file"]
    assert figures["bars"]["ratio_to_fio.read_cold"]["limit"] == 0.8
    assert not list(tmp_path.iterdir()), "what was measured is removed"


def test_batches_beside_a_spinning_thread_give_every_figure(tmp_path: Path) -> None:
    figures = bench_storage(small(tmp_path, measures=("beside",)))
    for order in ("neighbouring", "scattered"):
        for heat in ("cold", "warm"):
            found = figures["beside_spinner"][order][heat]
            assert found["alone_ms"] > 0
            assert found["ratio"] == pytest.approx(found["beside_ms"] / found["alone_ms"], rel=0.2)
    assert set(figures["spinner_slowdown"]) >= {"cold", "warm"}
    assert set(figures["exists_128"]) >= {"local_p50_ms", "registry_p50_ms", "registry_p99_ms"}
    assert figures["exists_keys_per_s"] > 0
    assert figures["ratio_to_sglang_file"]["read_warm_beside"] > 0


def test_a_large_index_is_held_against_a_small_one(tmp_path: Path) -> None:
    figures = bench_storage(small(tmp_path, measures=("scale",)))
    assert set(figures["scale_ratio"]) == {"exists", "get", "set", "evict"}
    assert figures["index"]["pages"] >= 12_800
    assert figures["index"]["bytes_a_page"] > 0
    assert figures["index"]["startup_seconds"] > 0


def test_the_table_says_of_each_bar_whether_it_is_met(tmp_path: Path) -> None:
    arguments = ["bench", "storage", "--dir", str(tmp_path), "--page-bytes", "16KiB"]
    more = ["--pages", "128", "--runs", "1", "--measure", "read", "--against", "sglang-file"]
    done = CliRunner().invoke(build(), [*arguments, *more])
    assert done.exit_code == 0, done.output
    assert "warm read / HiCacheFile" in done.stdout
    assert "met" in done.stdout


@pytest.mark.parametrize(
    "changes",
    [{"measures": ("reed",)}, {"against": ("dd",)}, {"pages": 5}, {"page_bytes": 100}],
)
def test_a_plan_that_cannot_be_measured_is_refused(tmp_path: Path, changes: object) -> None:
    assert isinstance(changes, dict)
    with pytest.raises(ConfigError):
        small(tmp_path, **changes)


def test_a_missed_page_voids_a_figure() -> None:
    with pytest.raises(StorageError, match="never_written"):
        all_ok([NEVER_WRITTEN])


def test_sides_take_turns_and_the_median_counts() -> None:
    order: list[str] = []

    def side(name: str, rate: float) -> float:
        order.append(name)
        return rate

    result = alternate(3, lambda: side("ours", 3.0), lambda: side("theirs", 2.0))
    assert order == ["ours", "theirs", "theirs", "ours", "ours", "theirs"]
    assert result.ratio == 1.5
    assert Comparison([1, 9, 2], [1, 1, 1]).ratio == 2


def test_a_page_of_pieces_lies_layer_first_in_the_same_memory() -> None:
    memory = page_memory(3, 8192)
    pages = pieces_of(memory, 3, 2)
    base = int(pages.addresses[0, 0])
    assert (pages.addresses.astype(np.int64) - base).tolist() == [
        [0, 3 * 4096],
        [4096, 4 * 4096],
        [2 * 4096, 5 * 4096],
    ]
    assert pages.page_bytes == 8192


def test_bars_hang_on_the_page_size(tmp_path: Path) -> None:
    limits = {bar.key: bar.limit for bar in bars(small(tmp_path, page_bytes=1 << 20))}
    assert limits["ratio_to_fio.read_cold"] == 0.9
    assert "ratio_to_sglang_file.read_cold" not in limits


def test_the_file_backend_equivalent_keeps_pages_and_notices_missing_ones(tmp_path: Path) -> None:
    files = MinimalFilePages(tmp_path, "test")
    memory = page_memory(2, 4096)
    memory[0], memory[1] = 1, 2
    keys = [page_key(0), page_key(1)]
    files.set(keys, list(memory))
    assert files.exists([*keys, page_key(2)]) == 2
    read = page_memory(2, 4096)
    files.get(keys, list(read))
    assert (read == memory).all()
    with pytest.raises(OSError, match="No such file"):
        files.get([page_key(2)], list(read[:1]))


def test_the_spinner_spins_until_its_context_ends() -> None:
    with Spinner() as spinner:
        assert spinner.progress > 0
    stopped = spinner.progress
    assert spinner.progress == stopped


@pytest.mark.parametrize(("option", "value"), [("runs", 0), ("pieces", -1), ("scale_pages", 1)])
def test_a_number_that_is_too_small_is_refused_by_its_option(
    option: str, value: int, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=rf"^--{option.replace('_', '-')} must be at least"):
        BenchPlan(tmp_path, **{option: value})  # type: ignore[arg-type]  # all three are numbers
