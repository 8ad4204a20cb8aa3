"""SGLang's extra config, in each form in which it comes, holds a configuration of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import ConfigError
from hicache_storage.sglang.settings import SGLANG_KEYS, plugin_config, wants_zero_copy

OWN = {"storage_backend": "nvme", "nvme": {"path": "/mnt/l3", "page_size": 64}}
LOADER = {"backend_name": "l3", "module_path": "hicache_storage.sglang", "class_name": "HiCacheL3"}
TOML = """backend_name = "l3"
interface_v1 = 1
storage_backend = "nvme"
[nvme]
path = "/mnt/l3"
page_size = 64
"""


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("HICACHE_STORAGE_NVME__PATH", "HICACHE_STORAGE_STORAGE__BACKEND"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def file(name: str, text: str) -> Path:
    Path(name).write_text(text)
    return Path(name)


@pytest.mark.parametrize("nothing", [None, "", b"", "{}", b"{}", {}, LOADER, " "])
def test_nothing_of_ours_is_the_defaults(nothing: Any) -> None:
    assert plugin_config(nothing).backend == "nvme"
    assert not wants_zero_copy(nothing)


@pytest.mark.parametrize(
    "given",
    [
        {**LOADER, **OWN, "interface_v1": 1},
        json.dumps({**LOADER, **OWN, "interface_v1": 1}),
        json.dumps({**LOADER, **OWN, "interface_v1": 1}).encode(),
        "@own.json",
        "@own.toml",
        {**LOADER, "interface_v1": 1, "config": "ours.json"},
        json.dumps({"interface_v1": True, "config": "ours.json"}),
        {**LOADER, "interface_v1": 1, "config": "own.json"},
        {**LOADER, "interface_v1": 1, "config": "own.toml"},
        {**LOADER, "interface_v1": 1, "config": str(Path("own.toml"))},
    ],
)
def test_each_form_says_the_same(given: Any) -> None:
    file("own.json", json.dumps({**LOADER, **OWN, "interface_v1": 1}))
    file("own.toml", TOML)
    file("ours.json", json.dumps(OWN))
    found = plugin_config(given)
    assert (found.backend, found.nvme.path, found.nvme.page_size) == ("nvme", "/mnt/l3", 64)
    assert wants_zero_copy(given)


@pytest.mark.parametrize("key", sorted(SGLANG_KEYS))
def test_keys_of_sglang_are_none_of_ours(key: str) -> None:
    assert plugin_config({**OWN, key: 1}).nvme.path == "/mnt/l3"
    assert plugin_config({"config": str(file("x.json", json.dumps({**OWN, key: 1})))}).nvme.path


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"nvm": {"path": "/x"}}, r"nvm.*nvme"),
        ({"nvme": {"pathh": "/x"}}, r"pathh.*path"),
        ({"prefetch_treshold": 1}, r"prefetch_treshold.*did you mean.*prefetch_threshold"),
        ({"interface_v2": 1}, r"interface_v2.*did you mean.*interface_v1"),
        ({"storage_backend": "nvmee"}, r"nvmee.*nvme"),
        ({"config": "x.json", "nvme": {}}, r"x\.json.*nvme.*one place"),
        ({"config": 7}, "path of a file, not 7"),
        ({"config": "absent.json"}, r"absent\.json: cannot be read"),
        ({"config": "x.yaml"}, r"ends in \.json or \.toml"),
        ("@absent.toml", r"absent\.toml: cannot be read"),
        ('{"nvme": {"path": "/a", "path": "/b"}}', r"1:\d+.*twice"),
        ('{"nvme": NaN}', "NaN"),
        ("{'nvme': 1}", r"1:2: JSON syntax error.*double quotes"),
        ("[]", "object of sections"),
        (b"\xff", "not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(given: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        plugin_config(given)


def test_a_wrong_key_in_a_file_is_named_by_its_place() -> None:
    own = file("own.json", '{\n  "backend_name": "l3",\n  "nvme": {\n    "pathh": "/x"\n  }\n}')
    for given in ({"config": str(own)}, f"@{own}"):
        with pytest.raises(ConfigError, match=r"own\.json:4:5: nvme\.pathh.*path"):
            plugin_config(given)


def test_a_file_gives_way_to_the_environment_and_an_argument_does_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HICACHE_STORAGE_NVME__PATH", "/from/env")
    own = file("own.json", json.dumps({**LOADER, **OWN}))
    assert plugin_config({"config": str(own)}).nvme.path == "/from/env"
    assert plugin_config(OWN).nvme.path == "/mnt/l3"
    assert plugin_config(None).nvme.path == "/from/env"


@pytest.mark.parametrize(
    ("value", "wanted"),
    [(0, False), (1, True), (True, True), (False, False), ("0", True), ("", False), (None, False)],
)
def test_zero_copy_is_wanted_where_sglang_takes_it_so(value: Any, wanted: bool) -> None:
    """Any text that isn't empty is true for SGLang."""
    assert wants_zero_copy({"interface_v1": value}) is wanted
    assert plugin_config({"interface_v1": value}).backend == "nvme"
