"""The registry's benchmark: what it is measured against, and that both sides agree."""

from __future__ import annotations

import json
import random
import sys
import zipfile
from pathlib import Path

import pytest
from typer import Typer
from typer.testing import CliRunner

from hicache_backends.errors import ConfigError
from hicache_storage.cli.bench_registry import bench_registry
from hicache_storage.tools import mini3fs, registry_bench_locate, registry_bench_pages
from hicache_storage.tools.registry_bench_plan import RegistryBenchPlan

MODULE = mini3fs.MODULE.replace(".", "/") + ".py"


def wheel(path: Path, module: str) -> Path:
    with zipfile.ZipFile(path / "sglang-0-py3-none-any.whl", "w") as archive:
        archive.writestr(MODULE, module)
    return path / "sglang-0-py3-none-any.whl"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """A cache whose environment is there already: this interpreter."""
    programs = tmp_path / "cache" / "venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "python").symlink_to(sys.executable)
    (programs.parent / "installed").touch()
    return tmp_path / "cache"


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    """60 requests, two thirds of which share their beginning with another."""
    dice = random.Random(1)  # noqa: S311  # the same trace every time
    path = tmp_path / "trace.jsonl"
    chains = [[*range(n, n + 8), *dice.sample(range(10**6, 10**9), 8)] for n in (0, 50, 90)]
    requests = [chains[n % 3][: n % 16 + 1] for n in range(60)]
    lines = [{"timestamp": n, "hash_ids": blocks} for n, blocks in enumerate(requests)]
    path.write_text("\n".join(map(json.dumps, lines)) + "\n")
    return path


def test_module_comes_out_of_the_wheel_and_is_kept(cache: Path, tmp_path: Path) -> None:
    said: list[str] = []
    mini3fs.prepare(cache, wheel(tmp_path, "one = 1\n"), said.append)
    assert (cache / "site" / MODULE).read_text() == "one = 1\n"
    mini3fs.prepare(cache, None, said.append)
    assert said == []


def test_wheel_without_the_module_is_refused(cache: Path, tmp_path: Path) -> None:
    path = tmp_path / "other.whl"
    zipfile.ZipFile(path, "w").close()
    with pytest.raises(ConfigError, match=r"--sglang-wheel .*other\.whl"):
        mini3fs.prepare(cache, path)
    path.write_bytes(b"no archive")
    with pytest.raises(ConfigError, match=r"--sglang-wheel .*other\.whl"):
        mini3fs.prepare(cache, path)


def test_module_that_needs_more_than_it_used_to_is_refused(cache: Path, tmp_path: Path) -> None:
    changed = wheel(tmp_path, "from sglang.srt.server_args import ServerArgs\n")
    with pytest.raises(ConfigError, match=r"server_args.*0\.5\.23"):
        mini3fs.prepare(cache, changed)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"clients": 0}, "--clients"),
        ({"rounds": 0}, "--rounds"),
        ({"pages": 10}, "--pages"),
        ({"against": "redis"}, "mini3fs"),
        ({"against": "mini3fs"}, "trace"),
        ({"http": True}, "trace"),
    ],
)
def test_impossible_plan_is_refused(values: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        RegistryBenchPlan(**values)  # type: ignore[arg-type]  # wrong on purpose


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_bench_pages, "SPINNING_CALLS", 20)
    monkeypatch.setattr(registry_bench_pages, "RATE_PAGES", 1280)


def run(*arguments: object) -> dict[str, dict[str, dict[str, float]]]:
    app = Typer(pretty_exceptions_enable=False)
    app.command()(bench_registry)
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    figures: dict[str, dict[str, dict[str, float]]] = json.loads(result.stdout)
    return figures


@pytest.mark.usefixtures("short")
def test_all_sides_find_the_same_pages(cache: Path, tmp_path: Path, trace: Path) -> None:
    stand_in = Path(__file__).with_name("mini3fs_stand_in.py").read_text()
    figures = run(
        *("--trace", trace, "--clients", 2, "--stored-requests", 30, "--rounds", 1),
        *("--pages", 1024, "--against", "mini3fs", "--sglang-wheel", wheel(tmp_path, stand_in)),
        *("--cache", cache, "--dir", tmp_path, "--http"),
    )
    cases = ["one_client", "2_clients", "all_present"]
    for case in cases:
        found = figures["registry"][case]["pages_found"]
        assert found == figures["http"][case]["pages_found"]
        assert found == figures["mini3fs"][case]["pages_found"]
        assert found > 0
    assert list(figures["ratio_to_mini3fs"]) == list(figures["http_ratio_to_mini3fs"]) == cases
    assert set(figures["claim_publish_keys_per_s"]) == {"32", "128"}
    assert set(figures["memory_bytes_per_page"]) == {"1024"}
    assert set(figures["exists_128_beside_spinner"]) == {"local", "registry"}


def test_locate_is_fast_enough_for_a_router(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_bench_locate, "CALLS", 300)
    figures = run("--locate")
    assert figures["redis"]["p50_ms"] < 3 * 5  # type: ignore[operator]  # a number here
    assert figures["http"]["p50_ms"] < 3 * 8  # type: ignore[operator]  # a number here


@pytest.mark.slow
@pytest.mark.usefixtures("short")
def test_real_metadata_server_finds_the_same_pages(tmp_path: Path, trace: Path) -> None:
    figures = run(
        *("--trace", trace, "--clients", 2, "--stored-requests", 30, "--rounds", 1),
        *("--pages", 1024, "--against", "mini3fs", "--cache", tmp_path / "new", "--dir", tmp_path),
    )
    found = [figures[side]["2_clients"]["pages_found"] for side in ("registry", "mini3fs")]
    assert found[0] == found[1] > 0
    assert figures["ratio_to_mini3fs"]["2_clients"] > 1  # type: ignore[operator]  # a number here


def test_locate_is_shown_as_a_table_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_bench_locate, "CALLS", 20)
    app = Typer()
    app.command()(bench_registry)
    result = CliRunner().invoke(app, ["--locate"])
    assert result.exit_code == 0, result.output
    assert "http p50 ms" in result.output
