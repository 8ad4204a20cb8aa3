"""The harness shows what SGLang does: a prompt comes back from storage, byte by byte."""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest
import torch

from tests.sglang.harness.recording import record
from tests.sglang.harness.tree import Flags, Ranks, Shape, Tree, tokens
from tests.sglang.plugin import extra_config

LAYOUTS = [
    *(("mha", layout) for layout in ("layer_first", "page_first", "page_first_direct")),
    *(("mla", layout) for layout in ("layer_first", "page_first", "page_first_direct")),
    ("mha", "page_head"),
]


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_a_prompt_comes_back_through_sglangs_own_files(
    tmp_path: Path, kind: str, layout: str
) -> None:
    shape = Shape(kind=kind, layout=layout)
    ids = tokens(20)
    assert _stored_and_fetched(tmp_path, ids, shape) == len(ids)


@pytest.mark.parametrize(
    ("ranks", "told"),
    [
        (Ranks(1, 2, pp_rank=1, pp_size=2), (1, 2, 1, 2, 0, 1, 0)),
        (Ranks(1, 4, cp_size=2, dp_size=2), (0, 1, 0, 1, 1, 2, 0)),
        (Ranks(2, 4, cp_size=2, dp_size=2), (0, 1, 0, 1, 0, 2, 1)),
    ],
)
def test_a_backend_is_told_the_rank_of_the_scheduler(
    tmp_path: Path, ranks: Ranks, told: tuple[int, ...]
) -> None:
    flags = Flags(storage_backend="file")
    with Tree({"file_storage_path": str(tmp_path)}, Shape(), ranks, flags) as server:
        config = server.controller.storage_config
        assert told == (
            *(config.tp_rank, config.tp_size, config.pp_rank, config.pp_size),
            *(config.attn_cp_rank, config.attn_cp_size, config.dp_rank),
        )
        assert server.insert(tokens(20))
        assert len(list(tmp_path.iterdir())) == 20


def test_each_kind_of_call_has_its_thread(tmp_path: Path) -> None:
    config, ids = extra_config(tmp_path), tokens(20)
    with Tree(config) as server:
        written = record(server.backend)
        server.insert(ids)
    with Tree(config) as other:
        read = record(other.backend)
        other.prefetch(ids)
    assert [(call.method, call.thread) for call in written if call.method != "close"] == [
        ("batch_set_v1", "backup_thread_func")
    ]
    assert [(call.method, call.thread) for call in read if call.method != "close"] == [
        ("batch_exists", "prefetch_thread_func"),
        ("batch_get_v1", "prefetch_io_aux_func"),
    ]
    assert read[0].result == len(read[1].result) == 20


def _stored_and_fetched(path: Path, ids: array[int], shape: Shape) -> int:
    config, flags = {"file_storage_path": str(path)}, Flags(storage_backend="file")
    with Tree(config, shape, flags=flags) as server:
        stored = server.insert(ids)
    with Tree(config, shape, flags=flags) as other:
        fetched = other.prefetch(ids)
        back = other.load_back(ids)
    assert all(torch.equal(a, b) for a, b in zip(stored, back, strict=True))
    return fetched
