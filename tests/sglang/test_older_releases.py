"""The plugin under the cache controllers of older SGLangs, each in its own process."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.sglang.harness.old import OLD, run_old
from tests.sglang.plugin import extra_config

BY_INDEX = {"batch_set_v1", "batch_get_v1"}
AS_TENSORS = {"batch_set", "batch_get"}


@pytest.mark.parametrize("version", OLD)
def test_a_prompt_comes_back(tmp_path: Path, version: str) -> None:
    report = run_old(version, extra_config(tmp_path))
    assert (report.stored_pages, report.fetched_pages, report.equal) == (150, 150, True)
    assert not report.dead_threads
    moved = AS_TENSORS if version == "0.5.3" else BY_INDEX  # it knows no interface_v1
    assert report.calls.keys() & (BY_INDEX | AS_TENSORS) == moved


def test_a_prompt_comes_back_as_tensors(tmp_path: Path) -> None:
    report = run_old("0.5.6", extra_config(tmp_path, zero_copy=False))
    assert (report.stored_pages, report.fetched_pages, report.equal) == (150, 150, True)
    assert report.calls.keys() & (BY_INDEX | AS_TENSORS) == AS_TENSORS
