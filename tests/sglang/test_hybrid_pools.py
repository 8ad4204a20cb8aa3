"""Pools beside KV are stored and come back with it: windows, states, indexers, drafts."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.sglang.harness.hybrid import DraftTree, IndexerTree, MambaTree, SlidingWindowTree
from tests.sglang.harness.tree import Shape, Tree, tokens
from tests.sglang.plugin import extra_config

TREES = [(SlidingWindowTree, 16), (MambaTree, 64), (IndexerTree, 64), (DraftTree, 16)]


@pytest.mark.parametrize(("tree", "page_size"), TREES)
def test_every_pool_of_a_prompt_comes_back(
    tmp_path: Path, tree: type[Tree], page_size: int
) -> None:
    config, shape = extra_config(tmp_path), Shape(page_size=page_size)
    ids = tokens(12, page_size=page_size)
    with tree(config, shape) as server:
        stored = server.insert(ids)
    with tree(config, shape) as other:
        assert other.prefetch(ids) == len(ids)
        back = other.load_back(ids)
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))
