"""The launch flags: what SGLang is told is what the file says, however it is pasted."""

from __future__ import annotations

import importlib
import json
import shlex
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import ConfigError
from hicache_storage.cli.app import run
from hicache_storage.config import load_config
from hicache_storage.sglang.settings import SGLANG_KEYS, plugin_config, wants_zero_copy
from hicache_storage.tools import sglang_args
from hicache_storage.tools.sglang_args import Tuning, launch_flags, words

EXTRA = "--hicache-storage-backend-extra-config"
CONFIG = """
[storage]
backend = "nvme"
[storage.nvme]
path = "/kv"
page_size = 64
"""


def written(path: Path, text: str = CONFIG) -> Path:
    path.write_text(text)
    return path


def stated(path: Path, layout: str | None) -> Path:
    section = f'[identity]\nlayout = "{layout}"\n' if layout else ""
    return written(path / "l3.toml", CONFIG + section)


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    assert run(["sglang-args", *arguments]) == 0
    line = capsys.readouterr().out
    assert line.count("\n") == 1
    return shlex.split(line)


def value(arguments: list[str], flag: str) -> str:
    return arguments[arguments.index(flag) + 1]


def extra(arguments: list[str]) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value(arguments, EXTRA))
    return found


def test_the_flags_lead_the_plugin_to_the_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "l3.toml")
    arguments = printed(capsys, "--config", str(file))
    assert arguments[0] == "--enable-hierarchical-cache"
    assert value(arguments, "--hicache-storage-backend") == "dynamic"
    assert value(arguments, "--page-size") == "64"
    assert arguments[-2] == EXTRA, "the README takes the last one to attach at run time"
    told = extra(arguments)
    assert plugin_config(told) == plugin_config(value(arguments, EXTRA)) == load_config(file)
    assert wants_zero_copy(told)
    assert told["hicache_storage_pass_prefix_keys"] is True
    assert importlib.import_module(told["module_path"]).__all__ == [told["class_name"]]


def test_a_shell_gives_sglang_the_very_same_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / 'it\'s an $L3 "file".toml')
    assert run(["sglang-args", "--config", str(file)]) == 0
    line = capsys.readouterr().out
    script = f"printf '%s\\0' {line}"
    taken = subprocess.run(["/bin/sh", "-c", script], capture_output=True, text=True, check=True)
    assert run(["sglang-args", "--config", str(file), "--json"]) == 0
    assert taken.stdout.split("\0")[:-1] == json.loads(capsys.readouterr().out)


def test_the_path_is_one_that_any_directory_understands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "l3.toml")
    monkeypatch.chdir(tmp_path)
    assert extra(printed(capsys, "--config", "l3.toml"))["config"] == str(file)


def test_a_threshold_is_passed_on_only_where_one_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(written(tmp_path / "l3.toml"))
    assert "prefetch_threshold" not in extra(printed(capsys, "-c", file))
    told = extra(printed(capsys, "-c", file, "--prefetch-threshold", "128"))
    assert told["prefetch_threshold"] == 128
    assert "prefetch_threshold" in SGLANG_KEYS


def test_what_a_file_holds_for_sglang_is_passed_on_and_an_option_goes_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(
        written(
            tmp_path / "l3.toml", f"prefetch_threshold = 32\nprefetch_timeout_base = 3\n{CONFIG}"
        )
    )
    told = extra(printed(capsys, "-c", file))
    assert (told["prefetch_threshold"], told["prefetch_timeout_base"]) == (32, 3)
    told = extra(printed(capsys, "-c", file, "--prefetch-threshold", "128"))
    assert (told["prefetch_threshold"], told["prefetch_timeout_base"]) == (128, 3)


def test_without_a_page_size_it_warns_of_pages_of_one_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path / "l3.toml", CONFIG.replace("page_size = 64\n", ""))
    assert run(["sglang-args", "-c", str(file)]) == 0
    said = capsys.readouterr()
    assert "--page-size" not in said.out
    assert "page_size is not set" in said.err


@pytest.mark.skipif(find_spec("sglang") is not None, reason="SGLang is installed")
def test_without_sglang_it_says_that_nothing_was_checked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sglang-args", "-c", str(written(tmp_path / "l3.toml"))]) == 0
    assert capsys.readouterr().err == "unchecked: SGLang is not installed here\n"


@pytest.mark.parametrize(
    ("layout", "asked", "found"),
    [
        (None, Tuning(), ("page_first", "kernel")),
        (None, Tuning(io_backend="direct"), ("page_first_direct", "direct")),
        (None, Tuning(layout="page_first_direct"), ("page_first_direct", "direct")),
        (None, Tuning(layout="layer_first", io_backend="direct"), ("layer_first", "direct")),
        ("page_first_direct", Tuning(), ("page_first_direct", "direct")),
        ("page_head", Tuning(io_backend="kernel"), ("page_head", "kernel")),
    ],
)
def test_layout_and_io_backend_go_together(
    layout: str | None, asked: Tuning, found: tuple[str, str], tmp_path: Path
) -> None:
    flags = launch_flags(stated(tmp_path, layout), asked)
    assert (flags["--hicache-mem-layout"], flags["--hicache-io-backend"]) == found


@pytest.mark.parametrize(
    ("layout", "asked", "word"),
    [
        (None, Tuning(layout="page_first", io_backend="direct"), "page_first_direct with direct"),
        (None, Tuning(layout="page_first_direct", io_backend="kernel"), "does not go with"),
        ("page_first", Tuning(io_backend="direct"), "does not go with"),
        ("page_first", Tuning(layout="layer_first"), "identity.layout is 'page_first'"),
        (None, Tuning(layout="page_frist"), "did you mean 'page_first'"),
        (None, Tuning(io_backend="krenel"), "did you mean 'kernel'"),
        (None, Tuning(write_policy="write_thru"), "--write-policy: one of"),
        (None, Tuning(prefetch_policy="never"), "--prefetch-policy: one of"),
        ("blocked", Tuning(), "identity.layout: one of"),
    ],
)
def test_what_sglang_would_change_or_refuse_is_refused(
    layout: str | None, asked: Tuning, word: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=word):
        launch_flags(stated(tmp_path, layout), asked)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ('[storage.nvme]\npth = "/kv"\n', "did you mean 'path'"),
        ('[storage]\nbackend = "nvme"\n', "nvme.path is missing"),
        ('[storage.nvme]\npaths = ["/kv", "kv"]\n', "'kv' would be another directory"),
        ('[storage]\nbackend = "nvem"\n', "unknown backend"),
        ("[storage", "l3.toml"),
    ],
)
def test_a_bad_configuration_exits_with_2_and_prints_no_flags(
    text: str, word: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sglang-args", "-c", str(written(tmp_path / "l3.toml", text))]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert word in said.err


@pytest.mark.parametrize("arguments", [[], ["-c", "absent.toml"]])
def test_without_a_file_it_exits_with_2(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["sglang-args", *arguments]) == 2


@pytest.mark.parametrize(
    ("answer", "word"),
    [
        ({"unknown": ["--hicache-storage-backend"]}, "0.5.3 or later"),
        ({"refused": {"--hicache-storage-backend": ["file", "hf3fs"]}}, "0.5.3 or later"),
        ({"refused": {"--hicache-mem-layout": ["layer_first"]}}, "one of layer_first"),
        ({"error": "argument --page-size: invalid int value"}, "refuses the flags"),
    ],
)
def test_what_the_parser_does_not_take_is_an_error(
    answer: dict[str, Any], word: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=word):
        answered(monkeypatch, answer, tmp_path)


def test_a_flag_that_an_older_sglang_does_not_know_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags, notes = answered(monkeypatch, {"unknown": ["--hicache-io-backend"]}, tmp_path)
    assert "--hicache-io-backend" not in flags
    assert notes[0] == "left out: SGLang 0.5.2 has no --hicache-io-backend"


def answered(
    monkeypatch: pytest.MonkeyPatch, answer: dict[str, Any], path: Path
) -> tuple[list[str], tuple[str, ...]]:
    whole = {"version": "0.5.2", "unknown": [], "refused": {}, "error": ""} | answer
    monkeypatch.setattr(sglang_args, "find_spec", lambda _name: object())
    monkeypatch.setattr(sglang_args, "_ask", lambda _flags: whole)
    result = sglang_args.checked(launch_flags(written(path / "l3.toml"), Tuning()))
    return words(result.flags), result.notes
