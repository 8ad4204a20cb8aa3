"""What the documents say is what the code does."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from typer.main import get_command

from hicache_storage.cli.app import build
from hicache_storage.config.describe import reference_table
from hicache_storage.metrics import Metrics
from hicache_storage.sglang.guard import failures_counter

REPOSITORY = Path(__file__).parents[1]
DOCUMENTS = sorted(REPOSITORY.glob("*.md"))
README = (REPOSITORY / "README.md").read_text()


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def section(begin: str, end: str) -> str:
    return README.split(f"<!-- {begin} -->")[1].split(f"<!-- {end} -->")[0].strip()


def test_the_configuration_table_is_the_one_the_code_prints() -> None:
    begin = "configuration table: hicache-storage config table"
    assert section(begin, "end of configuration table") == reference_table()


@pytest.mark.parametrize("block", code_blocks("python"))
def test_python_in_the_readme_runs_and_prints_what_it_says(block: str, tmp_path: Path) -> None:
    path = f"{REPOSITORY}:{REPOSITORY}/backends"
    ran = subprocess.run(
        [sys.executable, "-W", "error", "-c", block],
        cwd=tmp_path,
        env={"PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.returncode == 0, ran.stderr
    expected = re.findall(r"^\s*print\(.*\)\s+# (.*)$", block, re.MULTILINE)
    assert ran.stdout.split("\n")[:-1] == expected


def test_configuration_in_the_readme_is_taken(tmp_path: Path) -> None:
    from hicache_storage.config import load_config
    from hicache_storage.tools.sglang_args import Tuning, launch_flags

    blocks = code_blocks("toml")
    assert len(blocks) >= 4
    for block in blocks:
        file = tmp_path / "l3.toml"
        file.write_text(block)
        assert load_config(file, env={}).global_kvmanager.enabled
        assert launch_flags(file, Tuning())["--page-size"] == "64"


def test_commands_in_the_readme_exist_and_all_are_there() -> None:
    known = set()
    root = get_command(build())
    for name, command in root.commands.items():  # type: ignore[attr-defined]  # it is a group
        known |= {f"{name} {inner}" for inner in getattr(command, "commands", ())} or {name}
    said = set(
        re.findall(r"^\| `hicache-storage ((?:[a-z]+(?:-[a-z]+)* ?)+)", README, re.MULTILINE)
    )
    assert {command.strip() for command in said} == known - {"config table"}


def test_the_metrics_in_the_readme_are_those_there_are() -> None:
    registry = CollectorRegistry()
    Metrics.create("nvme", "t", registry)
    suffixes = {"counter": "_total"}
    families = [*registry.collect(), *failures_counter().collect()]
    known = {f"{family.name}{suffixes.get(family.type, '')}" for family in families}
    assert set(re.findall(r"hicache_[a-z_]+", README)) - {"hicache_storage"} >= known
    said = set(re.findall(r"`(hicache_[a-z_]+)", README.split("## Metrics")[1]))
    assert said == known


@pytest.mark.parametrize("document", DOCUMENTS, ids=[d.name for d in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", document.read_text()):
        if "://" not in target:
            assert (REPOSITORY / target).exists(), target


def test_a_real_session_stands_in_the_first_thirty_lines() -> None:
    assert "print(store" in "\n".join(README.split("\n")[:30])
