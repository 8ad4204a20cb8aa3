"""Prompts stored by one SGLang come back in another, byte by byte, whatever their shape."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sglang.harness.tree import Ranks, Shape, Tree, tokens
from tests.sglang.plugin import extra_config

SHAPES = [
    *(("mha", layout) for layout in ("layer_first", "page_first", "page_first_direct")),
    *(("mla", layout) for layout in ("layer_first", "page_first", "page_first_direct")),
    ("mha", "page_head"),
]


def comes_back(path: Path, shape: Shape, pages: int, *, zero_copy: bool = True) -> None:
    ids = tokens(pages, page_size=shape.page_size)
    config = extra_config(path, zero_copy=zero_copy)
    with Tree(config, shape) as server:
        stored = server.insert(ids)
    with Tree(config, shape) as other:
        assert other.prefetch(ids) == len(ids)
        back = other.load_back(ids)
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))


@pytest.mark.parametrize("zero_copy", [True, False], ids=["by index", "as tensors"])
@pytest.mark.parametrize(("kind", "layout"), SHAPES)
def test_every_layout_by_index_and_as_tensors(
    tmp_path: Path, kind: str, layout: str, zero_copy: bool
) -> None:
    comes_back(tmp_path, Shape(kind=kind, layout=layout), 300, zero_copy=zero_copy)


@pytest.mark.parametrize("zero_copy", [True, False], ids=["by index", "as tensors"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float8_e4m3fn, torch.float8_e5m2])
def test_every_kind_of_number(tmp_path: Path, dtype: torch.dtype, zero_copy: bool) -> None:
    config = extra_config(tmp_path, zero_copy=zero_copy)
    config["identity"]["kv_dtype"] = str(dtype).removeprefix("torch.")
    ids = tokens(20)
    with Tree(config, Shape(dtype=dtype)) as server:
        stored = server.insert(ids)
    with Tree(config, Shape(dtype=dtype)) as other:
        assert other.prefetch(ids) == len(ids)
        back = other.load_back(ids)
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))


@pytest.mark.parametrize("page_size", [1, 2, 64, 128])
def test_every_page_size(tmp_path: Path, page_size: int) -> None:
    comes_back(tmp_path, Shape(page_size=page_size), 300 if page_size < 64 else 20)


def test_a_page_in_another_layout_is_never_served(tmp_path: Path) -> None:
    ids = tokens(20)
    with Tree(extra_config(tmp_path), Shape(layout="page_first")) as server:
        server.insert(ids)
    for layout in ("layer_first", "page_first_direct", "page_head"):  # pages of the same size
        with Tree(extra_config(tmp_path), Shape(layout=layout)) as other:
            assert other.prefetch(ids) == 0


def test_a_page_of_another_8_bit_float_is_never_served(tmp_path: Path) -> None:
    ids, shape = tokens(20), Shape(dtype=torch.float8_e4m3fn)
    config = extra_config(tmp_path, identity={"kv_dtype": "float8_e4m3fn"})
    with Tree(config, shape) as server:
        server.insert(ids)
    config["identity"]["kv_dtype"] = "float8_e5m2"
    with Tree(config, shape) as other:
        assert other.prefetch(ids) == 0


SPLIT = [
    [Ranks(tp_rank=rank, tp_size=2) for rank in range(2)],
    [Ranks(pp_rank=rank, pp_size=2) for rank in range(2)],
    [Ranks(tp_rank=rank, tp_size=2, cp_size=2) for rank in range(2)],
]


@pytest.mark.parametrize("ranks", SPLIT, ids=["tensor", "pipeline", "context"])
def test_ranks_that_hold_different_bytes_get_their_own(tmp_path: Path, ranks: list[Ranks]) -> None:
    ids, config = tokens(20), extra_config(tmp_path, shared=True)
    stored = []
    for seed, rank in enumerate(ranks):
        with Tree(config, ranks=rank) as server:
            assert server.prefetch(ids) == 0, "found pages of another rank"
            stored.append(server.insert(ids, seed=seed))
    for rank, expected in zip(ranks, stored, strict=True):
        with Tree(config, ranks=rank) as other:
            assert other.prefetch(ids) == len(ids)
            back = other.load_back(ids)
        assert all(torch.equal(a, b) for a, b in zip(expected, back, strict=True))


def test_replicas_of_one_rank_share_its_pages(tmp_path: Path) -> None:
    ids, config = tokens(20), extra_config(tmp_path, shared=True)
    first = Ranks(tp_rank=0, tp_size=2, dp_size=2)
    second = Ranks(tp_rank=1, tp_size=2, dp_size=2)
    with Tree(config, ranks=first) as server, Tree(config, ranks=second) as other:
        stored = server.insert(ids)
        assert other.prefetch(ids) == len(ids)
        back = other.load_back(ids)
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))


def test_of_an_mla_model_one_rank_stores_and_all_find(tmp_path: Path) -> None:
    ids, config, shape = tokens(20), extra_config(tmp_path, shared=True), Shape(kind="mla")
    first, second = Ranks(0, 2), Ranks(1, 2)
    with Tree(config, shape, first) as writer, Tree(config, shape, second) as reader:
        stored = writer.insert(ids)
        assert reader.prefetch(ids) == len(ids)
        back = reader.load_back(ids)
        assert reader.backend.batch_set_v1(["00" * 32], torch.arange(16)) == [True]
        assert reader.backend.batch_exists(["00" * 32]) == 0, "a reader stored a page"
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))


def test_of_an_mla_model_ranks_without_a_registry_are_refused(tmp_path: Path) -> None:
    config, shape = extra_config(tmp_path), Shape(kind="mla")
    with pytest.raises(ValueError, match=r'set global_kvmanager to .*"embedded"'):
        Tree(config, shape, Ranks(0, 2))
