"""What is found out about the running SGLang, and what is refused because of it."""

from __future__ import annotations

import logging
import sys
import types
from typing import Any

import pytest

from hicache_backends.errors import ConfigError
from hicache_storage.config import load_config
from hicache_storage.sglang.engine import Engine, running_engine
from hicache_storage.sglang.pools import Pools
from tests.hicache_storage.sglang_plugin.ranks import engine


class ServerArgs:
    """Stands in for SGLang's launch arguments."""

    def __init__(self, **said: Any) -> None:
        self.__dict__.update(said, _private="secret")


class StructArgs:
    """Stands in for launch arguments that are a msgspec struct: fields in slots, little else."""

    __struct_fields__ = ("kv_cache_dtype", "port", "_secret")
    __slots__ = ("__dict__", "_secret", "kv_cache_dtype", "port")

    def __init__(self, kv_cache_dtype: str, port: int) -> None:
        self.kv_cache_dtype, self.port, self._secret = kv_cache_dtype, port, "secret"
        self.__dict__["_resolution_finished"] = True


def bag(**values: Any) -> Any:
    return types.SimpleNamespace(**values, _path="model")


def sglang(patch: pytest.MonkeyPatch, version: str, **modules: dict[str, Any]) -> None:
    """An SGLang of these modules, and of nothing else."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "sglang"]:
        patch.delitem(sys.modules, name)
    names = {
        "runtime_context": "sglang.srt.runtime_context",
        "server_args": "sglang.srt.server_args",
        "dp_attention": "sglang.srt.layers.dp_attention",
    }
    package = types.ModuleType("sglang")
    vars(package)["__version__"] = version
    patch.setitem(sys.modules, "sglang", package)
    for parent in ("sglang.srt", "sglang.srt.layers"):
        patch.setitem(sys.modules, parent, types.ModuleType(parent))
    for short, name in names.items():
        module = types.ModuleType(name)
        vars(module).update(modules.get(short, {}))
        patch.setitem(sys.modules, name, module)


def test_a_new_release_tells_what_it_made_of_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it resolved goes before what was given: `auto` may have become 8 bits."""
    sglang(
        monkeypatch,
        "0.5.23",
        runtime_context={
            "get_server_args": lambda: StructArgs("auto", 30000),
            "get_model": lambda: bag(kv_cache_dtype="fp8_e4m3"),
            "get_lora": lambda: bag(enable_lora=True),
        },
        dp_attention={"is_dp_attention_enabled": lambda: True},
    )
    found = running_engine()
    assert (found.version, found.release, found.splits_requests) == ("0.5.23", (0, 5, 23), True)
    assert found.arg("kv_cache_dtype") == "fp8_e4m3"
    assert found.arg("port") == 30000
    assert found.serves_lora
    assert found.args is not None
    assert sorted(found.args) == ["enable_lora", "kv_cache_dtype", "port"]
    assert found.arg("absent") is None


@pytest.mark.parametrize("hip", [None, "6.4"])
def test_a_torch_for_amd_is_noticed(monkeypatch: pytest.MonkeyPatch, hip: str | None) -> None:
    sglang(monkeypatch, "0.5.23")
    torch = types.SimpleNamespace(version=types.SimpleNamespace(hip=hip))
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert running_engine().hip is (hip is not None)


def test_an_older_release_tells_its_arguments_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    def unset() -> Any:
        raise ValueError("Global server args is not set yet!")

    args = {"get_global_server_args": lambda: ServerArgs(lora_paths={"a": "/a"})}
    sglang(monkeypatch, "0.5.6", server_args=args, dp_attention={"is_dp_attention_enabled": bool})
    found = running_engine()
    assert found.serves_lora
    assert not found.splits_requests
    assert found.zero_copy
    sglang(monkeypatch, "0.5.6", server_args={"get_global_server_args": unset})
    assert running_engine().args is None


def test_before_0_5_6_the_arguments_are_found_nevertheless(monkeypatch: pytest.MonkeyPatch) -> None:
    sglang(monkeypatch, "0.5.3", server_args={"ServerArgs": ServerArgs})
    held = ServerArgs(model_path="/models/qwen", enable_lora=True, lora_paths=["a"])
    found = running_engine()
    assert found.arg("model_path") == held.__dict__["model_path"]
    assert found.serves_lora
    assert not found.zero_copy


def test_arguments_that_are_not_told_are_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    sglang(monkeypatch, "0.5.23")
    assert running_engine().args is None
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert "LoRA adapters" in caplog.text


@pytest.mark.parametrize(("version", "warned"), [("0.5.19", True), ("0.5.20", False)])
def test_salts_that_are_not_in_page_hashes_are_told_of_once(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    version: str,
    warned: bool,
) -> None:
    told = {"get_server_args": ServerArgs}
    sglang(monkeypatch, version, runtime_context=told)
    running_engine()
    assert [("cache_salt" in record.message) for record in caplog.records] == [True] * warned


def test_no_sglang_is_an_engine_without_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert running_engine().version == ""


@pytest.mark.parametrize(
    ("version", "release"),
    [
        ("0.5.20", (0, 5, 20)),
        ("0.5.20.post1", (0, 5, 20)),
        ("0.5.20rc1", (0, 5, 20)),
        ("0.6", (0, 6)),
        ("0.5.9", (0, 5, 9)),
    ],
)
def test_releases_are_numbers_in_order(version: str, release: tuple[int, ...]) -> None:
    assert Engine(version, None).release == release
    assert Engine("", None).release > release < Engine("main", None).release


def test_ranks_of_one_server_have_one_name() -> None:
    assert engine(dist_init_addr="10.0.0.1:5000", port=1).server_name == "sglang-10.0.0.1:5000"
    assert engine(port=30000).server_name.endswith("-30000")
    assert engine().server_name == ""


REGISTRY = {"global_kvmanager": {"enabled": True}}
IDENTITY = {"identity": {"model": "m", "revision": "r"}}


def pools(by: Engine, backend: str = "nvme", *, manager: bool = False, **said: Any) -> Pools:
    nvme = {"nvme": {"path": "/nonexistent"}} if backend == "nvme" else {}
    tree = {"storage_backend": backend, **nvme, **IDENTITY, **(REGISTRY if manager else {})}
    config = load_config(tree, env={})
    return Pools(config, by, types.SimpleNamespace(**said), zero_copy=True)


@pytest.mark.parametrize("lora", [{"enable_lora": True}, {"lora_paths": ["a=/a"]}])
def test_adapters_are_refused_where_page_hashes_do_not_name_them(lora: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"LoRA.*0\.5\.20 or later"):
        pools(engine("0.5.19", **lora))
    pools(engine("0.5.20", **lora))
    pools(engine("0.5.19", enable_lora=None, lora_paths=None))


def test_mla_ranks_that_could_not_find_each_others_pages_are_refused() -> None:
    said: dict[str, Any] = {"is_mla_model": True, "tp_size": 2}
    with pytest.raises(ConfigError, match=r'"enabled": true.*"endpoint": "embedded"'):
        pools(engine(), **said)
    pools(engine(), manager=True, **said)
    pools(engine(), **{**said, "tp_size": 1})
    pools(engine(), **{**said, "is_mla_model": False})
    with pytest.raises(ConfigError, match="a backend that all ranks reach"):
        pools(engine(), "memory", manager=True, **said)


def test_a_rank_of_no_known_part_is_refused_before_anything_is_opened() -> None:
    with pytest.raises(ConfigError, match="context-parallel"):
        pools(engine("0.5.10", attn_cp_size=2), tp_size=2)
