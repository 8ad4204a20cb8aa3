"""A call of the plugin that fails is a miss: counted, and told of once in a while."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import REGISTRY

from hicache_storage.sglang.guard import Guard


def counted(call: str) -> float:
    return REGISTRY.get_sample_value("hicache_sglang_failures_total", {"call": call}) or 0.0


def fail(text: str) -> int:
    raise RuntimeError(text)


def test_a_failure_is_the_other_value_and_counted_by_call(caplog: pytest.LogCaptureFixture) -> None:
    first, attached_again = Guard(), Guard()
    before = counted("batch_exists")
    with caplog.at_level(logging.WARNING):
        assert [first.run("batch_exists", 7, fail, "no such thing") for _ in range(3)] == [7] * 3
    attached_again.run("batch_exists", 7, fail, "no such thing")
    assert first.failures == {"batch_exists": 3}
    assert counted("batch_exists") - before == 4
    assert len(caplog.records) == 2, "one a guard"


def test_what_goes_well_is_returned_and_not_counted() -> None:
    guard, before = Guard(), counted("batch_set")
    assert guard.run("batch_set", False, bool, 1) is True
    assert (guard.failures, counted("batch_set")) == ({}, before)
