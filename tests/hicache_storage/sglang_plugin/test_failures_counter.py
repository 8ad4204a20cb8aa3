"""Failed calls are counted by name in the process's metrics, however often SGLang attaches."""

from __future__ import annotations

from prometheus_client import REGISTRY

from hicache_storage.sglang.guard import Guard


def counted(call: str) -> float:
    return REGISTRY.get_sample_value("hicache_sglang_failures_total", {"call": call}) or 0.0


def fail() -> int:
    raise RuntimeError("no such thing")


def test_failures_are_counted_by_call_over_every_attachment() -> None:
    before = counted("batch_exists"), counted("batch_set")
    for guard in (Guard(), Guard()):
        assert guard.run("batch_exists", 7, fail) == 7
        assert guard.run("batch_set", False, bool, 1)
    assert (counted("batch_exists") - before[0], counted("batch_set") - before[1]) == (2, 0)
