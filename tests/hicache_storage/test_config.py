"""A configuration is taken strictly, wherever it comes from, and every option arrives."""

from __future__ import annotations

import dataclasses
import inspect
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import ConfigError
from hicache_backends.fsspec_store import FsspecOptions
from hicache_backends.identity import Namespace
from hicache_backends.mooncake.backend import MooncakeOptions
from hicache_backends.nvme import NvmeOptions
from hicache_backends.table import backend_names, build_options
from hicache_backends.threefs.backend import ThreeFsOptions
from hicache_storage import access_log
from hicache_storage.config import Config, load_config, loading
from hicache_storage.config import model as model_module
from hicache_storage.config.backend_sections import BACKENDS
from hicache_storage.config.describe import json_schema, reference_table, settings
from hicache_storage.config.sections import SECTIONS, keys_of
from hicache_storage.options import StoreOptions
from kvmanager.options import RegistryOptions

GIB = 1 << 30
FLAT: dict[str, Any] = {
    "storage_backend": "3fs",
    "3fs": {
        "mount_point": "/mnt/3fs/kvcache",
        "cluster_id": "kvcache-prod",
        "token": "your-3fs-token",
        "io_engine": "usrbio",
        "page_size": 64,
        "prefetch_depth": 4,
        "batch_get_size": 32,
        "batch_set_size": 32,
        "timeout_ms": 5000,
    },
    "global_kvmanager": {
        "enabled": True,
        "endpoint": "http://kvmanager.internal:8080",
        "namespace": "agent-inference",
    },
}
NESTED: dict[str, Any] = {
    "storage": {"backend": "3fs", "3fs": FLAT["3fs"]},
    "global_kvmanager": FLAT["global_kvmanager"],
}


def to_toml(tree: dict[str, Any]) -> str:
    """TOML of a tree of tables, strings, numbers and booleans."""
    lines: list[str] = []

    def table(path: list[str], values: dict[str, Any]) -> None:
        if path:
            lines.append(f"[{'.'.join(path)}]")
        lines.extend(f"{k} = {json.dumps(v)}" for k, v in values.items() if not isinstance(v, dict))
        for key, inner in values.items():
            if isinstance(inner, dict):
                table([*path, key], inner)

    table([], tree)
    return "\n".join(lines) + "\n"


def write(directory: Path, text: str | bytes, name: str = "l3.json") -> str:
    path = directory / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return f"@{path}"


def load(source: Any = None, **env: str) -> Config:
    return load_config(source, env={f"HICACHE_STORAGE_{k}": v for k, v in env.items()})


def refused(source: Any = None, **env: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(source, **env)
    return str(caught.value)


# -- shapes and sources


@pytest.mark.parametrize("tree", [FLAT, NESTED], ids=["flat", "nested"])
@pytest.mark.parametrize("suffix", ["json", "toml"])
def test_both_shapes_are_read_from_json_and_toml(
    tmp_path: Path, tree: dict[str, Any], suffix: str
) -> None:
    text = json.dumps(tree) if suffix == "json" else to_toml(tree)
    config = load(write(tmp_path, text, f"l3.{suffix}"))
    assert config.model_dump() == load(FLAT).model_dump()
    assert config.backend == "3fs"
    assert config.three_fs.io_engine == "usrbio"
    assert config.store_options() == StoreOptions(batch_get_size=32, batch_set_size=32)
    assert config.global_kvmanager.enabled
    assert config.global_kvmanager.namespace == "agent-inference"


@pytest.mark.parametrize("source", [None, "", "  ", "{}", b"{}", {}])
def test_nothing_given_is_the_defaults(source: Any) -> None:
    assert load(source) == Config()


def test_every_way_to_give_the_same_configuration(tmp_path: Path) -> None:
    text = json.dumps({"nvme": {"path": "/kv", "prefetch_depth": "auto"}})
    toml = '[storage.nvme]\npath = "/kv"\nprefetch_depth = "auto"\n'
    expected = load({"nvme": {"path": "/kv", "prefetch_depth": "auto"}})
    assert expected.nvme.prefetch_depth == "auto"
    for source in (
        text,
        text.encode(),
        write(tmp_path, text),
        Path(write(tmp_path, text)[1:]),
        write(tmp_path, toml, "l3.toml"),
        write(tmp_path, b"\xef\xbb\xbf" + text.encode()),
        write(tmp_path, b"\xef\xbb\xbf" + toml.replace("\n", "\r\n").encode(), "l3.toml"),
    ):
        assert load(source).model_dump() == expected.model_dump()


def test_a_configuration_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        load().nvme.path = "/elsewhere"


# -- what is refused, and how it is said


def test_an_unknown_key_names_file_line_column_and_the_right_key(tmp_path: Path) -> None:
    text = '{\n  "storage_backend": "nvme",\n  "nvme": {\n    "prefetch_dept": 4\n  }\n}'
    said = refused(write(tmp_path, text))
    assert f"{tmp_path}/l3.json:4:5: nvme.prefetch_dept: unknown key" in said
    assert "did you mean 'prefetch_depth'?" in said
    said = refused(write(tmp_path, '[storage]\n\n[storage.nvme]\npth = "/kv"\n', "l3.toml"))
    assert f"{tmp_path}/l3.toml:4:1: storage.nvme.pth: unknown key; did you mean 'path'?" in said


@pytest.mark.parametrize(
    ("tree", "key", "right"),
    [
        ({"storage_backed": "nvme"}, "storage_backed", "storage_backend"),
        ({"nvmee": {}}, "nvmee", "nvme"),
        ({"storage": {"nvmee": {}}}, "storage.nvmee", "nvme"),
        ({"storage": {"bakend": "nvme"}}, "storage.bakend", "backend"),
        ({"global_kv_manager": {}}, "global_kv_manager", "global_kvmanager"),
        ({"global_kvmanager": {"endpont": "x"}}, "global_kvmanager.endpont", "endpoint"),
        ({"identity": {"model_cfg": "x"}}, "identity.model_cfg", "model_config"),
        ({"identity": {"model_file": "x"}}, "identity.model_file", "model_config"),
        ({"storage_backend": "nmve"}, "storage_backend", "nvme"),
    ],
)
def test_an_unknown_key_anywhere_suggests_the_right_one(
    tree: dict[str, Any], key: str, right: str
) -> None:
    said = refused(json.dumps(tree))
    assert key in said
    assert f"did you mean {right!r}?" in said
    assert "argument:1:" in said


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("nvme", {"page_size": "64"}),
        ("nvme", {"page_size": 0}),
        ("nvme", {"prefetch_depth": 65}),
        ("nvme", {"prefetch_depth": 0}),
        ("nvme", {"prefetch_depth": "4"}),
        ("nvme", {"prefetch_depth": True}),
        ("nvme", {"timeout_ms": 0}),
        ("nvme", {"timeout_ms": "5000"}),
        ("nvme", {"batch_get_size": 2.0}),
        ("nvme", {"capacity": "four gigabytes"}),
        ("nvme", {"capacity": -1}),
        ("nvme", {"capacity": 0}),
        ("nvme", {"capacity": 1.5}),
        ("nvme", {"io_engine": "aio"}),
        ("nvme", {"create": 1}),
        ("nvme", {"path": ""}),
        ("nvme", {"path": ["/a"]}),
        ("nvme", {"paths": [1]}),
        ("nvme", {"paths": []}),
        ("nvme", {"mode": "write"}),
        ("3fs", {"token": 5}),
        ("identity", {"layers": [0]}),
        ("global_kvmanager", {"enabled": "yes"}),
        ("global_kvmanager", {"ttl_ms": 5999, "heartbeat_ms": 2000}),
    ],
)
def test_a_wrong_value_names_its_key(section: str, values: dict[str, Any]) -> None:
    said = refused({section: values})
    assert f"{section}.{next(iter(values))}" in said


def test_all_wrong_keys_are_said_at_once() -> None:
    said = refused({"nvme": {"pth": "/kv", "page_size": "64"}})
    assert "nvme.pth" in said
    assert "nvme.page_size" in said


def test_a_section_that_is_none_is_refused() -> None:
    assert "nvme is a section, not int" in refused('{"nvme": 3}')
    assert "must be an object" in refused("[1]")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{'nvme': {}}", "1:2: JSON syntax error"),
        ('{\n "nvme": {\n}', "3:2: JSON syntax error"),
        ('{"nvme": {"timeout_ms": NaN}}', "NaN"),
        ('{"nvme": {"timeout_ms": 1e999}}', "1e999"),
        (
            '{"nvme": {"timeout_ms": 1,\n "timeout_ms": 2}}',
            "2:2: nvme.timeout_ms stands there twice",
        ),
        ("[" * 100_000, "nested too deeply"),
        ("conf.json", "given as '@conf.json'"),
        (b"\xff\xfe{}", "UTF-8"),
    ],
)
def test_a_text_that_is_no_configuration_says_where(text: Any, says: str) -> None:
    assert says in refused(text)


def test_single_quotes_get_a_hint() -> None:
    assert "double quotes" in refused("{'nvme': {}}")
    assert "double quotes" not in refused('{"nvme": }')


def test_broken_toml_is_an_error_with_its_line(tmp_path: Path) -> None:
    assert "line 2" in refused(write(tmp_path, "[storage]\nbackend = \n", "l3.toml"))
    twice = '[storage]\nbackend = "nvme"\nbackend = "memory"\n'
    assert "line 3" in refused(write(tmp_path, twice, "l3.toml"))


def test_a_missing_file_is_an_error_not_the_defaults(tmp_path: Path) -> None:
    assert "absent.json: cannot be read: No such file" in refused(f"@{tmp_path}/absent.json")
    assert "ends in .json or .toml" in refused(f"@{tmp_path}/l3.yaml")


def test_one_thing_said_in_two_ways_is_refused() -> None:
    both = {"storage_backend": "nvme", "storage": {"backend": "nvme"}}
    assert "storage.backend" in refused(both)
    assert "give only one" in refused({"nvme": {"path": "/a", "paths": ["/b"]}})
    assert "nvme.path" in refused({"nvme": {"path": "/a"}, "storage": {"nvme": {"path": "/b"}}})


# -- sizes


@pytest.mark.parametrize("size", ["4gb", "4GiB", "4G", "4294967296", 4 * GIB])
def test_sizes_as_people_write_them(size: Any) -> None:
    assert load({"nvme": {"capacity": size}}).nvme.capacity == 4 * GIB
    assert load(NVME__CAPACITY=str(size)).nvme.capacity == 4 * GIB


def test_sizes_above_a_tebibyte() -> None:
    assert load({"nvme": {"capacity": "30TiB"}}).nvme.capacity == 30 << 40


# -- places and their order


def test_environment_overrides_a_file_and_an_argument_overrides_both(tmp_path: Path) -> None:
    file = write(
        tmp_path, json.dumps({"nvme": {"path": "/file", "timeout_ms": 1, "page_size": 64}})
    )
    config = load(file, NVME__PATH="/env", NVME__TIMEOUT_MS="2")
    assert (config.nvme.path, config.nvme.timeout_ms, config.nvme.page_size) == ("/env", 2, 64)
    sources = {s.key: s.source for s in settings(config)}
    assert sources["nvme.path"] == "env HICACHE_STORAGE_NVME__PATH"
    assert sources["nvme.page_size"] == file[1:]
    assert sources["nvme.mode"] == "default"
    config = load({"nvme": {"path": "/argument"}}, NVME__PATH="/env", NVME__TIMEOUT_MS="2")
    assert (config.nvme.path, config.nvme.timeout_ms) == ("/argument", 2)
    assert {s.key: s.source for s in settings(config)}["nvme.path"] == "argument"


def test_the_environment_reaches_every_kind_of_key() -> None:
    config = load(
        STORAGE__BACKEND="3fs",
        NVME__PATHS="/a:/b",
        NVME__CREATE="false",
        NVME__PREFETCH_DEPTH="8",
        MEMORY__PREFETCH_DEPTH="auto",
        IDENTITY__LAYERS="0,28",
        GLOBAL_KVMANAGER__ENABLED="true",
        **{"3FS__TOKEN": "hush"},
    )
    assert config.backend == "3fs"
    assert config.nvme.paths == ("/a", "/b")
    assert not config.nvme.create
    assert config.nvme.prefetch_depth == 8
    assert config.memory.prefetch_depth == "auto"
    assert config.identity.layers == (0, 28)
    assert config.global_kvmanager.enabled
    assert config.three_fs.token is not None
    assert config.three_fs.token.get_secret_value() == "hush"


def test_a_path_of_the_environment_replaces_the_paths_of_a_file(tmp_path: Path) -> None:
    file = write(tmp_path, '{"nvme": {"paths": ["/a", "/b"]}}')
    config = load(file, NVME__PATH="/c")
    assert (config.nvme.path, config.nvme.paths) == ("/c", None)


@pytest.mark.parametrize(
    ("variable", "says"),
    [
        ("NVME__PTH", "did you mean HICACHE_STORAGE_NVME__PATH?"),
        ("NVME_PATH", "did you mean HICACHE_STORAGE_NVME__PATH?"),
        ("XYZ", "HICACHE_STORAGE_XYZ: unknown"),
        ("NVME__PREFETCH_DEPTH", "HICACHE_STORAGE_NVME__PREFETCH_DEPTH: should be"),
        ("NVME__CAPACITY", "HICACHE_STORAGE_NVME__CAPACITY: it is a number of bytes"),
        ("IDENTITY__LAYERS", "two numbers"),
    ],
)
def test_a_wrong_environment_variable_is_an_error(variable: str, says: str) -> None:
    assert says in refused(**{variable: "nonsense"})


def test_other_variables_are_none_of_our_business() -> None:
    assert load_config(None, env={"HICACHE_STORAGEX": "1", "HICACHE": "2"}) == Config()


# -- secrets


def secrets_of(config: Config) -> str:
    shown = [*settings(config), repr(config), str(config), config.model_dump_json()]
    return " ".join(map(str, shown))


def test_secrets_come_from_files_and_are_never_shown(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret-token\n")
    (tmp_path / "password").write_text("s3cret-pass/@:\n")
    config = load(
        {
            "storage_backend": "3fs",
            "3fs": {"token_file": str(tmp_path / "token")},
            "global_kvmanager": {
                "endpoint": "redis://registry:6379/0",
                "username": "kv",
                "password_file": str(tmp_path / "password"),
            },
        }
    )
    assert config.three_fs.token is not None
    assert config.three_fs.token.get_secret_value() == "s3cret-token"
    assert config.registry_endpoint() == "redis://kv:s3cret-pass%2F%40%3A@registry:6379/0"
    assert "s3cret" not in secrets_of(config)


def test_a_url_with_a_password_is_shown_without_it() -> None:
    config = load({"global_kvmanager": {"endpoint": "redis://kv:s3cret@registry:6379"}})
    shown = {s.key: s.value for s in settings(config)}
    assert shown["global_kvmanager.endpoint"] == "redis://***@registry:6379"
    assert "s3cret" not in repr(config)
    assert config.registry_endpoint() == "redis://kv:s3cret@registry:6379"


@pytest.mark.parametrize(
    "tree",
    [
        {"3fs": {"token": ["s3cret"]}},
        {"global_kvmanager": {"password": {"x": "s3cret"}}},
        {"fsspec": {"options": "s3cret"}},
    ],
)
def test_an_error_about_a_secret_does_not_say_it(tree: dict[str, Any]) -> None:
    assert "s3cret" not in refused(tree)


def test_a_secret_file_that_cannot_be_read_names_key_and_file(tmp_path: Path) -> None:
    said = refused({"3fs": {"token_file": f"{tmp_path}/absent"}})
    assert "3fs.token_file" in said
    assert "absent" in said
    assert "give only one" in refused({"3fs": {"token_file": "x", "token": "y"}})


def test_a_password_where_none_is_taken_is_refused() -> None:
    config = load({"global_kvmanager": {"password": "x"}})
    with pytest.raises(ConfigError, match="password"):
        config.registry_endpoint()


# -- identity

IDENTITY = {
    "model": "m",
    "revision": "r1",
    "kv_dtype": "bfloat16",
    "layout": "page_first",
    "page_bytes": 4096,
    "layers": [0, 2],
    "kv_heads": [0, 8],
    "token_shard": [0, 1],
    "pool": "kv",
    "salt": "",
}


def test_the_namespace_is_what_the_identity_section_says() -> None:
    config = load({"nvme": {"page_size": 64}, "identity": IDENTITY})
    assert config.namespace() == Namespace(
        "m", "r1", "bfloat16", "page_first", 64, 4096, (0, 2), (0, 8)
    )


def test_the_engine_and_the_identity_section_must_agree() -> None:
    config = load({"nvme": {"page_size": 64}, "identity": IDENTITY})
    assert config.namespace(page_tokens=64, layers=(0, 2)) == config.namespace()
    with pytest.raises(ConfigError, match=r"nvme\.page_size is 64, but the engine says 128"):
        config.namespace(page_tokens=128)
    with pytest.raises(ConfigError, match="page_token"):
        config.namespace(page_token=64)


@pytest.mark.parametrize("key", ["model", "revision", "kv_dtype", "layout", "page_bytes"])
def test_an_identity_with_an_unknown_part_is_refused(key: str) -> None:
    part = {k: v for k, v in IDENTITY.items() if k != key}
    config = load({"nvme": {"page_size": 64}, "identity": part})
    with pytest.raises(ConfigError, match=rf"identity\.{key} is missing"):
        config.namespace()


QWEN = {
    "_name_or_path": "qwen",
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_size": 1024,
    "torch_dtype": "float16",
}


def test_the_models_own_files_complete_the_identity(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    tree: dict[str, Any] = {
        "nvme": {"page_size": 64},
        "identity": {"model_config": str(tmp_path), "layout": "page_first"},
    }
    namespace = load(tree).namespace()
    assert namespace.model == "qwen"
    assert namespace.page_bytes == 64 * 114_688
    (tmp_path / "model.safetensors.index.json").write_text("{}")
    other = load(tree).namespace()
    assert other.revision != namespace.revision
    assert dataclasses.replace(other, revision=namespace.revision) == namespace
    fp8 = {**tree, "identity": {**tree["identity"], "kv_dtype": "fp8_e4m3"}}
    assert load(fp8).namespace().page_bytes == 32 * 114_688


def test_mla_keeps_one_latent_a_token(tmp_path: Path) -> None:
    mla = {"num_hidden_layers": 61, "kv_lora_rank": 512, "qk_rope_head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(mla))
    tree = {"nvme": {"page_size": 1}, "identity": {"model_config": str(tmp_path), "layout": "x"}}
    assert load(tree).namespace().page_bytes == 61 * 576 * 2


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"num_hidden_layers": "28"}'])
def test_model_files_that_do_not_tell_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    tree = {"nvme": {"page_size": 1}, "identity": {"model_config": str(tmp_path), "layout": "x"}}
    with pytest.raises(ConfigError, match="model_config"):
        load(tree).namespace()


# -- every option arrives

OTHER: dict[str, dict[str, Any]] = {
    "storage": {"backend": "memory"},
    "common": {
        "page_size": 128,
        "prefetch_depth": 7,
        "batch_get_size": 33,
        "batch_set_size": 34,
        "timeout_ms": 77.0,
        "mode": "read",
        "max_read_bytes_per_s": "1G",
        "max_write_bytes_per_s": "2G",
        "max_queued_bytes": "3G",
        "zero_copy": "never",
        "max_transfer_bytes": "1M",
        "capacity": "5G",
        "free_floor": "6G",
        "segment_bytes": 64 << 20,
    },
    "nvme": {
        "path": "/other",
        "paths": ["/other", "/another"],
        "io_engine": "posix",
        "io_mode": "buffered",
        "create": False,
    },
    "3fs": {
        "mount_point": "/mnt",
        "cluster_id": "c",
        "token": "t",
        "token_file": "<file>",
        "io_engine": "fuse",
        "ring_client": "own",
        "rings": 5,
        "staging_bytes": "64M",
    },
    "mooncake": {
        "master": "m:1",
        "metadata_server": "etcd",
        "local_hostname": "h",
        "protocol": "rdma",
        "device": "mlx5_0",
        "prefix": "other",
    },
    "fsspec": {"url": "s3://b", "options": {"anon": True}, "concurrency": 65},
    "memory": {},
    "global_kvmanager": {
        "enabled": True,
        "endpoint": "unix:///run/other.sock",
        "namespace": "other",
        "username": "u",
        "password": "p",
        "password_file": "<file>",
        "token": "t",
        "token_file": "<file>",
        "embedded_dir": "/run/other",
        "timeout_ms": 11.0,
        "connect_timeout_ms": 12.0,
        "heartbeat_ms": 1000.0,
        "ttl_ms": 30000.0,
        "claim_grace_ms": 14.0,
        "touch_interval_ms": 15,
        "journal_entries": 16,
        "announce_pages_per_s": 17,
        "breaker_failures": 18,
    },
    "access_log": {
        "directory": "<directory>",
        "rotate_bytes": "1M",
        "keep": 2,
        "max_queued_keys": 3,
    },
    "identity": {
        **{k: f"other-{v}" for k, v in IDENTITY.items() if isinstance(v, str)},
        "page_bytes": 8192,
        "layers": [2, 4],
        "kv_heads": [8, 16],
        "token_shard": [1, 2],
        "model_config": "<model>",
        "draft_revision": "other",
    },
    "sglang": {
        "metrics_port": 9100,
        "metrics_host": "127.0.0.2",
        "register_pools": True,
        "prefill_tokens_per_s": 8000.0,
    },
}
CASES = [(name, key) for name, section in SECTIONS.items() for key in keys_of(section)]


def told(config: Config) -> dict[str, Any]:
    """All that the library is told of a configuration."""
    try:
        namespace: object = config.namespace()
    except ConfigError as error:
        namespace = str(error)
    return {
        "backend": config.backend,
        "store": config.store_options(),
        "storage": config.storage_options(),
        "registry": config.registry_options(),
        "endpoint": config.registry_endpoint(),
        "enabled": config.global_kvmanager.enabled,
        "namespace": namespace,
        "access_log": config.access_log(),
        "sglang": (config.sglang, config.identity.draft_revision),
    }


@pytest.mark.parametrize(("section", "key"), CASES, ids=[".".join(case) for case in CASES])
def test_every_option_reaches_its_destination(
    section: str, key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_module, "backend_names", lambda: [*BACKENDS])
    backend = section if section in BACKENDS else "nvme"
    value = OTHER[section].get(key, OTHER["common"].get(key))
    assert value is not None, f"give {section}.{key} a value in this test"
    if value == "<file>":
        (tmp_path / "secret").write_text("other")
        value = str(tmp_path / "secret")
    base: dict[str, Any] = {
        "storage": {"backend": backend},
        "nvme": {"path": "/kv", "page_size": 64},
        "3fs": {"mount_point": "/kv"},
        "fsspec": {"url": "memory://kv"},
        "identity": dict(IDENTITY),
        "global_kvmanager": {"endpoint": "unix:///run/kv.sock"},
    }
    if value == "<model>":
        (tmp_path / "config.json").write_text(json.dumps(QWEN))
        value = str(tmp_path)
        base["identity"].pop("revision")
    if section == "access_log":
        base["access_log"] = {"directory": str(tmp_path / "log")}
    if value == "<directory>":
        value = str(tmp_path / "other log")
    if key == "paths":
        base["nvme"] = {"page_size": 64, "paths": ["/kv"]}
    monkeypatch.setattr(access_log, "AccessLog", lambda *args, **options: (args, options))
    before = told(load(base))
    base.setdefault(section, {})[key] = value
    after = told(load(base))
    assert {part for part in after if after[part] != before[part]}


def test_defaults_are_those_of_the_options_they_become() -> None:
    config = load({"nvme": {"path": "/kv"}})
    assert config.store_options() == StoreOptions()
    assert config.registry_options() == RegistryOptions(embedded_dir="/kv/.registry")
    assert load({"storage_backend": "memory"}).registry_options() == RegistryOptions()


def test_every_option_of_the_nvme_backend_has_a_key_and_its_default() -> None:
    config = load({"nvme": {"path": "/kv"}})
    built = build_options(NvmeOptions, config.storage_options(), "nvme")
    assert built == NvmeOptions(paths=("/kv",))
    fields = {field.name.removesuffix("_bytes") for field in dataclasses.fields(NvmeOptions)}
    assert fields == {key.removesuffix("_bytes") for key in config.storage_options()}


def test_the_access_log_has_a_key_for_each_option_and_its_default(tmp_path: Path) -> None:
    options = inspect.signature(access_log.AccessLog).parameters
    section = load().recording.model_dump()
    assert section.keys() == options.keys()
    assert {k: v.default for k, v in options.items() if k != "directory"} == {
        k: v for k, v in section.items() if k != "directory"
    }
    assert load().access_log() is None
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"access_log\.directory"):
        load({"access_log": {"directory": str(tmp_path / "file" / "log")}}).access_log()


def test_a_backend_that_is_not_there_yet_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_module, "backend_names", lambda: ["memory", "nvme"])
    with pytest.raises(ConfigError, match="'3fs' is not in this version; there are memory, nvme"):
        load(FLAT).storage_options()


@pytest.mark.parametrize("nested", [False, True])
def test_a_backend_of_another_distribution_takes_its_own_keys(
    nested: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (loading, model_module):
        monkeypatch.setattr(module, "backend_names", lambda: ["acme", "memory", "nvme"])
    section = {"shelf": 7, "timeout_ms": 3, "page_size": 64}
    tree = {"storage_backend": "acme", "acme": section}
    config = load({"storage": {"backend": "acme", "acme": section}} if nested else tree)
    assert config.storage_options() == {"shelf": 7}
    assert config.store_options().timeout_ms == 3
    assert {s.key for s in settings(config)} >= {"acme.shelf", "acme.timeout_ms"}
    assert "acme.timeout_ms: should be a valid number" in refused(
        {"storage_backend": "acme", "acme": {"timeout_ms": "3"}}
    )
    assert "unknown key 'acme'" in refused({"storage_backend": "nvme", "acme": {}})


def test_a_missing_path_says_where_to_put_it() -> None:
    with pytest.raises(ConfigError, match="HICACHE_STORAGE_NVME__PATH"):
        load().storage_options()
    with pytest.raises(ConfigError, match="HICACHE_STORAGE_FSSPEC__URL"):
        load({"storage_backend": "fsspec"}).storage_options()
    with pytest.raises(ConfigError, match=r"3fs\.mount_point .*HICACHE_STORAGE_3FS__MOUNT_POINT"):
        load({"storage_backend": "3fs"}).storage_options()


def test_every_option_of_the_mooncake_backend_has_a_key_and_its_default() -> None:
    given = load({"storage_backend": "mooncake"}).storage_options()
    assert build_options(MooncakeOptions, given, "mooncake") == MooncakeOptions()
    fields = {field.name.removesuffix("_bytes") for field in dataclasses.fields(MooncakeOptions)}
    assert fields == {key.removesuffix("_bytes") for key in given}


def test_every_option_of_the_fsspec_backend_has_a_key_and_its_default() -> None:
    config = load({"storage_backend": "fsspec", "fsspec": {"url": "memory://kv"}})
    given = config.storage_options()
    assert build_options(FsspecOptions, given, "fsspec") == FsspecOptions("memory://kv")
    fields = {field.name.removesuffix("_bytes") for field in dataclasses.fields(FsspecOptions)}
    assert fields == {key.removesuffix("_bytes") for key in given}


def test_every_option_of_the_3fs_backend_has_a_key_and_its_default() -> None:
    config = load({"storage_backend": "3fs", "3fs": {"mount_point": "/kv"}})
    given = config.storage_options()
    assert build_options(ThreeFsOptions, given, "3fs") == ThreeFsOptions("/kv")
    fields = {field.name.removesuffix("_bytes") for field in dataclasses.fields(ThreeFsOptions)}
    assert fields == {key.removesuffix("_bytes") for key in given}


def test_the_shipped_configuration_becomes_options_of_the_3fs_backend() -> None:
    options = build_options(ThreeFsOptions, load(FLAT).storage_options(), "3fs")
    assert options == ThreeFsOptions(
        "/mnt/3fs/kvcache", "kvcache-prod", "your-3fs-token", io_engine="usrbio"
    )
    assert "your-3fs-token" not in repr(options)


def test_3fs_stages_by_itself_and_has_no_key_for_it() -> None:
    assert "3fs.zero_copy: unknown key" in refused({"3fs": {"zero_copy": "never"}})


def test_the_embedded_registry_of_a_3fs_directory_lies_on_this_machine() -> None:
    def directory(mount_point: str) -> str:
        tree = {"storage_backend": "3fs", "3fs": {"mount_point": mount_point}}
        return load(tree).registry_options().embedded_dir or ""

    assert directory("/mnt/3fs/kv").startswith(tempfile.gettempdir())
    assert directory("/mnt/3fs/kv") == directory("/mnt/3fs/kv/")
    assert directory("/mnt/3fs/kv") != directory("/mnt/3fs/other")


# -- other forms


def test_the_schema_knows_every_section_of_the_flat_shape() -> None:
    properties = json_schema()["properties"]
    assert set(properties) == {"storage_backend", *SECTIONS} - {"storage"}


def test_the_table_has_every_key_of_the_backends_there_are() -> None:
    table = reference_table()
    for name, key in CASES:
        common = f"`*backend*.{key}`" in table
        is_there = name not in BACKENDS or name in backend_names()
        assert common or (f"`{name}.{key}`" in table) == is_there


@pytest.mark.parametrize("size", [1 << 20, "1MiB", "1024K"])
def test_page_bytes_take_units_and_are_limited(size: int | str) -> None:
    tree = {"nvme": {"path": "kv"}, "identity": {"page_bytes": size}}
    assert load_config(tree, env={}).identity.page_bytes == 1 << 20
    with pytest.raises(ConfigError, match=r"identity\.page_bytes: should be at most 1 GiB"):
        load_config({"identity": {"page_bytes": "100TiB"}}, env={})
    with pytest.raises(ConfigError, match=r"identity\.page_bytes.* at most 1 GiB"):
        load_config({}, env={}).namespace(page_bytes=1 << 40)


@pytest.mark.parametrize(
    ("section", "key", "value"),
    [
        ("nvme", "path", "a\0b"),
        ("nvme", "paths", ["a\0b"]),
        ("global_kvmanager", "embedded_dir", "a\0b"),
        ("global_kvmanager", "password_file", "a\0b"),
        ("access_log", "directory", "a\0b"),
        ("identity", "model_config", "a\0b"),
    ],
)
def test_no_path_holds_a_null_character(section: str, key: str, value: object) -> None:
    with pytest.raises(ConfigError, match=rf"{section}\.{key}.* null "):
        load_config({section: {key: value}}, env={})


def test_a_variable_is_never_said_to_mean_a_key_of_another_section() -> None:
    for key in ("MOUNT_POINT", "ENDPOINT", "PAHT"):
        with pytest.raises(ConfigError) as caught:
            load_config({}, env={f"HICACHE_STORAGE_NVME__{key}": "/x"})
        assert caught.match("mean HICACHE_STORAGE_NVME__PATH" if key == "PAHT" else "config schema")
