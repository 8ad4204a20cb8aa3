"""A server that may only read, or leave storage alone, does so in silence."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sglang.harness.tree import Tree, tokens
from tests.sglang.plugin import extra_config


@pytest.mark.parametrize("zero_copy", [True, False], ids=["by index", "as tensors"])
@pytest.mark.parametrize(("mode", "found"), [("read", 20), ("off", 0)])
def test_what_a_mode_keeps_from_being_stored_is_no_failure(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, mode: str, found: int, zero_copy: bool
) -> None:
    known, fresh = tokens(20), tokens(20, seed=1)
    config = extra_config(tmp_path, zero_copy=zero_copy)
    with Tree(config) as writer:
        writer.insert(known)
    with Tree({**config, "nvme": {**config["nvme"], "mode": mode}}) as reader:
        assert reader.prefetch(known) == found * 16
        caplog.clear()
        reader.insert(fresh)
    assert not [record for record in caplog.records if "failed" in record.getMessage()]
    with Tree(config) as writer:
        assert writer.prefetch(fresh) == 0
