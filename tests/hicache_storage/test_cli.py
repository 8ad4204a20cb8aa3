"""The command line: fast to start, figures as JSON, errors that say what to do."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hicache_storage.cli.app import run
from hicache_storage.config.describe import json_schema, reference_table

REPOSITORY = Path(__file__).parents[2]


def hicache(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hicache_storage", *arguments],
        env={
            "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/backends",
            "PATH": os.environ["PATH"],
            **env,
        },
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_help_comes_within_300_milliseconds() -> None:
    def cpu_seconds() -> float:
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert hicache("--help").returncode == 0
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime

    # processor time, and the best of several: the machine may be busy with other things
    assert any(cpu_seconds() < 0.3 for _ in range(10))


def test_help_imports_nothing_heavy() -> None:
    code = (
        "import sys\n"
        "from hicache_storage.cli.app import run\n"
        "assert run(['--help']) == 0\n"
        "heavy = {'redis', 'pyarrow', 'pydantic', 'numpy', 'torch', 'prometheus_client'}\n"
        "assert not heavy & set(sys.modules), heavy & set(sys.modules)\n"
    )
    subprocess.run(
        [sys.executable, "-c", code],
        env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/backends"},
        check=True,
        stdout=subprocess.DEVNULL,
    )


@pytest.mark.parametrize(
    "arguments",
    [
        ["config", "show", "--config", "absent.json"],
        ["check", "--config", "absent.json"],
        ["check", "--config", "broken.json"],
        ["check", "--config", "typo.toml"],
        ["check"],
        ["inspect", "."],
        ["inspect", "absent"],
        ["namespaces", "list", "."],
        ["namespaces", "prune", "."],
        ["namespaces", "prune", ".", "--unused-for", "long"],
        ["clear", "--tenant", "t", "--config", "absent.json"],
        ["fsck", "."],
        ["fsck", "--config", "absent.json"],
        ["config", "shwo"],
        ["frobnicate"],
        ["check", "--frobnicate"],
        ["--log-level", "loud", "config", "table"],
    ],
    ids=" ".join,
)
def test_bad_input_exits_with_2_and_says_why_on_stderr(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.json").write_text("{'nvme': {}}")
    Path("typo.toml").write_text('[storage.nvme]\npth = "/kv"\n')
    assert run(arguments) in ((1, 2) if arguments == ["check"] else (2,))
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err


def test_an_error_names_the_key_and_the_right_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "l3.toml"
    file.write_text('[storage.nvme]\npth = "/kv"\n')
    assert run(["config", "show", "--config", str(file)]) == 2
    assert f"{file}:2:1: storage.nvme.pth: unknown key; did you mean 'path'?" in (
        capsys.readouterr().err
    )


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert run([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_config_show_tells_values_and_where_each_came_from(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "l3.json"
    file.write_text('{"nvme": {"path": "/kv"}, "global_kvmanager": {"password": "s3cret"}}')
    monkeypatch.setenv("HICACHE_STORAGE_NVME__PREFETCH_DEPTH", "9")
    found = {s["key"]: s for s in shown(capsys, "config", "show", "--config", str(file))}
    assert found["nvme.path"] == {"key": "nvme.path", "value": "/kv", "source": str(file)}
    assert found["nvme.prefetch_depth"]["value"] == 9
    assert found["nvme.prefetch_depth"]["source"] == "env HICACHE_STORAGE_NVME__PREFETCH_DEPTH"
    assert found["nvme.mode"]["source"] == "default"
    assert run(["config", "show", "--config", str(file)]) == 0
    table = capsys.readouterr().out
    assert "env HICACHE_STORAGE_NVME__PREFETCH_DEPTH" in table
    assert "s3cret" not in table
    assert "s3cret" not in json.dumps(found)


def test_schema_and_table_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["config", "schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(json_schema()))
    assert run(["config", "table"]) == 0
    assert capsys.readouterr().out.strip() == reference_table()


def test_version_is_that_of_the_distribution(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import PackageNotFoundError, version

    try:
        expected = version("hicache-storage")
    except PackageNotFoundError:
        pytest.skip("hicache-storage is not installed")
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.split() == ["hicache-storage", expected]


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["check", "--config", "typo.toml"], "pth"),
        (["check", "--frobnicate"], "--frobnicate"),
        (["replay", "absent.jsonl", "--capacity", "0"], "capacity"),
        (["bench", "storage", "--dir", "d", "--runs", "0"], "--runs"),
    ],
)
def test_bad_input_is_said_as_json_where_json_is_wanted(
    arguments: list[str],
    word: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("typo.toml").write_text('[storage.nvme]\npth = "/kv"\n')
    assert run([*arguments, "--json"]) == 2
    said = json.loads(capsys.readouterr().out)
    assert word in said["error"]
    assert said["remedy"]
