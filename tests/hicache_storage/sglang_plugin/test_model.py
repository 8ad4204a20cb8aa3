"""The served model's revision: the same wherever its files lie, another for other weights."""

from __future__ import annotations

import json
import struct
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hicache_backends.errors import ConfigError
from hicache_storage.config import Config, load_config
from hicache_storage.config.model_files import read_model
from hicache_storage.sglang.engine import Engine
from hicache_storage.sglang.model import Model, model_of
from tests.hicache_storage.sglang_plugin.models import QWEN, TENSORS, make_model


def config(**identity: Any) -> Config:
    return load_config({"storage_backend": "memory", "identity": identity}, env={})


def served(path: Path | str, name: str | None = "qwen", **args: Any) -> Model:
    identity = args.pop("identity", {})
    return model_of(config(**identity), Engine("0.5.23", {"model_path": str(path), **args}), name)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("models") / "qwen")


def test_a_model_in_another_place_is_the_same_model(base: Path, tmp_path: Path) -> None:
    again = make_model(tmp_path / "deep" / "er" / "qwen")
    assert served(base) == served(again)
    named = served(base, str(base)), served(again, str(again))
    assert named[0] == named[1], "its path is its served name where none is given"
    assert named[0].name == "qwen"
    link = tmp_path / "link"
    link.symlink_to(again)
    assert served(link, str(link)) == named[0]


@pytest.mark.parametrize("changed", [name for name in TENSORS if name.startswith("layers.3")])
def test_a_fine_tuned_model_is_another_model_whichever_tensor_it_changed(
    base: Path, tmp_path: Path, changed: str
) -> None:
    tuned = make_model(tmp_path / "tuned", changed=changed)
    for name in ("config.json", "model.safetensors.index.json"):
        assert (tuned / name).read_bytes() == (base / name).read_bytes()
    sizes = {(path / "model.safetensors").stat().st_size for path in (base, tuned)}
    assert len(sizes) == 1
    assert served(tuned).revision != served(base).revision


@pytest.mark.parametrize(
    "change",
    [
        {"config": {**QWEN, "rope_theta": 5}},
        {"index": '{"metadata": {}}'},
        {"tensors": {**TENSORS, "layers.0.q": 16_385}},
    ],
)
def test_other_files_are_another_model(base: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    assert served(make_model(tmp_path, **change)).revision != served(base).revision


def test_weights_that_a_server_does_not_load_make_no_difference(base: Path, tmp_path: Path) -> None:
    again = make_model(tmp_path / "qwen")
    (again / "pytorch_model.bin").write_bytes(b"a copy in another format")
    (again / "README.md").write_text("a card")
    assert served(again) == served(base)


def test_a_model_of_very_many_tensors_is_sampled_in_bounded_reads(tmp_path: Path) -> None:
    """Of 12,000 tensors 4,096 are read: that one in a hundred is changed is seen."""
    tensors = {f"experts.{n}": 16 for n in range(12_000)}
    one = make_model(tmp_path / "one", tensors=tensors)
    reads = counted(one)
    assert 4000 < reads < 4200
    other = make_model(tmp_path / "other", tensors=tensors)
    body = bytearray((other / "model.safetensors").read_bytes())
    start = 8 + struct.unpack_from("<Q", body)[0]
    body[start::1600] = bytes(len(body[start::1600]))  # one tensor in a hundred
    (other / "model.safetensors").write_bytes(body)
    assert served(one).revision != served(other).revision


def counted(path: Path) -> int:
    """How many times files were opened to find this model's revision."""
    opened: list[Path] = []
    honest: Callable[..., Any] = Path.open

    def counting(self: Path, *args: Any, **more: Any) -> Any:
        opened.append(self)
        return honest(self, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Path, "open", counting)
        served(path)
    return len(opened)


@pytest.mark.parametrize("header", [b"", b"{", b"[1]", b'{"a": 1}', b'{"a": {"data_offsets": 1}}'])
@pytest.mark.parametrize("length", [None, 1 << 60])
def test_weights_of_no_known_format_are_sampled_all_over(
    tmp_path: Path, header: bytes, length: int | None
) -> None:
    made = []
    for value in (b"a", b"b"):
        path = make_model(tmp_path / value.decode())
        size = len(header) if length is None else length
        body = bytearray(b"a" * 3_000_000)
        body[1_500_000:1_600_000] = value * 100_000  # 3 % of it
        (path / "model.safetensors").write_bytes(struct.pack("<Q", size) + header + body)
        made.append(served(path).revision)
    assert made[0] != made[1]


def test_a_single_file_of_weights_is_a_model(tmp_path: Path) -> None:
    made = []
    for name, value in (("one", b"a"), ("two", b"b")):
        (tmp_path / name).mkdir()
        file = tmp_path / name / "qwen.gguf"
        file.write_bytes(b"GGUF" + value * 10_000)
        made.append(served(file))
    assert made[0].revision != made[1].revision
    assert made[0].kv_heads == 0, "unknown"


def test_a_download_of_the_hub_is_found(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = types.ModuleType("huggingface_hub")
    asked = []

    def snapshot_download(name: str, **more: Any) -> str:
        asked.append((name, more))
        return str(base)

    vars(hub)["snapshot_download"] = snapshot_download
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    found = served("Qwen/Qwen3", "Qwen/Qwen3", revision="main")
    assert (found.name, found.revision) == ("Qwen/Qwen3", served(base).revision)
    assert asked == [("Qwen/Qwen3", {"revision": "main", "local_files_only": True})]


def test_a_model_whose_files_are_elsewhere_needs_a_revision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    for path in ("s3://bucket/model", "Qwen/Qwen3", str(tmp_path / "absent"), str(tmp_path)):
        with pytest.raises(ConfigError, match=r"identity\.revision is missing"):
            served(path)
        assert served(path, identity={"revision": "v3"}).revision == "v3"
    with pytest.raises(ConfigError, match=r"identity\.model is missing"):
        served("", None, identity={"revision": "v3"})
    assert served("", None, identity={"revision": "v3", "model": "m"}).name == "m"


def test_a_config_without_weights_is_no_revision(base: Path, tmp_path: Path) -> None:
    """A fine-tuned model has the same config: what is loaded must be looked at."""
    (tmp_path / "config.json").write_text((base / "config.json").read_text())
    with pytest.raises(ConfigError, match=r"identity\.revision is missing"):
        served(tmp_path)
    named = {"model_config": str(tmp_path)}
    with pytest.raises(ConfigError, match=r"identity\.revision is missing"):
        served("s3://bucket/model", identity=named)
    assert served(base, identity=named) == served(base), "the weights that SGLang loads count"
    assert served("s3://bucket/model", identity={**named, "revision": "r"}).kv_heads == 4
    assert served(tmp_path, load_format="dummy").revision, "its config is all there is to it"


def test_a_download_cut_short_is_refused_by_its_file(tmp_path: Path) -> None:
    path = make_model(tmp_path)
    (path / "model.safetensors").unlink()
    (path / "model.safetensors").symlink_to("/nonexistent/blob")
    with pytest.raises(ConfigError, match=r"model\.safetensors: No such file"):
        served(path)


@pytest.mark.parametrize(
    ("said", "heads"),
    [
        (QWEN, 4),
        ({"text_config": {"num_key_value_heads": 8}, "num_key_value_heads": 2}, 8),
        ({"text_config": {"num_key_value_heads": 8}, "vision_config": {}}, 8),
        ({"num_key_value_heads": None}, 0),
        ({"num_key_value_heads": [4, 8]}, 0),
        ({"num_key_value_heads": 8, "swa_num_key_value_heads": 4}, 0),
        ({"num_key_value_heads": 8, "num_global_key_value_heads": 8}, 8),
        ({"num_attention_heads": 32}, 0),
        ({"llm_config": {"num_key_value_heads": 8}}, 0),
    ],
)
def test_heads_are_known_only_where_all_layers_have_as_many(
    tmp_path: Path, said: dict[str, Any], heads: int
) -> None:
    assert read_model(str(make_model(tmp_path, config=said))).kv_heads == heads


def test_a_draft_model_has_a_revision_of_its_own(base: Path, tmp_path: Path) -> None:
    draft = make_model(tmp_path / "draft", changed="layers.0.q")
    assert served(base).draft_revision == ""
    itself = {"speculative_draft_model_path": str(base)}
    assert served(base, **itself).draft_revision == "", "heads that come with the model"
    other = served(base, speculative_draft_model_path=str(draft))
    assert other.draft_revision == served(draft).revision != other.revision
    absent = {"speculative_draft_model_path": str(tmp_path / "absent")}
    assert served(base, **absent).draft_revision is None
    known = served(base, **absent, identity={"draft_revision": "d1"})
    assert known.draft_revision == "d1"


def test_what_is_configured_goes_before_what_sglang_says(base: Path) -> None:
    found = served(base, identity={"model": "ours", "revision": "v7"})
    assert (found.name, found.revision, found.kv_heads) == ("ours", "v7", 4)


def test_a_model_that_sglang_names_alone_is_found_by_that_name(base: Path) -> None:
    """Releases that don't tell their launch arguments."""
    found = model_of(config(), Engine("0.5.3", None), str(base))
    assert (found.name, found.revision) == ("qwen", served(base).revision)
    assert json.loads((base / "config.json").read_text()) == QWEN
