"""A failing call is a miss for SGLang, counted and told of, but not a thousand times."""

from __future__ import annotations

import logging
import threading
from typing import Any

import pytest

from hicache_backends.errors import StorageUnavailable
from hicache_storage.sglang.guard import QUIET_S, Guard


class Clock:
    """Seconds that pass when told to; a machine may have been up for less than the quiet time."""

    now = 1.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("hicache_storage.sglang.guard.time", made)
    return made


def fail(error: BaseException) -> Any:
    raise error


def test_what_works_is_passed_through() -> None:
    guard = Guard()
    assert guard.run("get", [], lambda *a: list(a), 1, 2) == [1, 2]
    assert not guard.failures


@pytest.mark.parametrize(
    "error",
    [StorageUnavailable("gone"), OSError(5, "EIO"), RuntimeError(), MemoryError(), TypeError("x")],
)
def test_each_failure_is_the_answer_given_for_it(
    clock: Clock, caplog: pytest.LogCaptureFixture, error: Exception
) -> None:
    guard = Guard()
    assert guard.run("batch_get", [False, False], fail, error) == [False, False]
    assert guard.failures == {"batch_get": 1}
    [told] = caplog.records
    assert told.levelno == logging.WARNING
    assert told.message.startswith("batch_get failed, which counts as a miss (1 times by now): ")
    assert type(error).__name__ in told.message


def test_a_counter_that_cannot_count_is_no_further_failure(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard()
    full = OSError(28, "No space left on device")
    monkeypatch.setattr(guard._counter, "labels", lambda *_: fail(full))
    assert guard.run("batch_get", 0, fail, OSError(5, "EIO")) == 0
    assert guard.failures == {"batch_get": 1}
    assert "EIO" in caplog.text


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit()])
def test_an_order_to_stop_is_no_failure(error: BaseException) -> None:
    with pytest.raises(type(error)):
        Guard().run("batch_get", 0, fail, error)


def test_a_failing_call_is_told_of_now_and_then(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    guard = Guard()
    for _ in range(100):
        guard.run("get", 0, fail, OSError("a"))
    guard.run("set", 0, fail, OSError("b"))
    assert len(caplog.records) == 2, "each call once"
    clock.now += QUIET_S
    guard.run("get", 0, fail, OSError("a"))
    assert "(101 times by now)" in caplog.messages[-1]
    assert len(caplog.records) == 3
    assert not any(record.exc_info for record in caplog.records)


def test_traces_are_for_those_who_look_for_them(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "hicache_storage.sglang.guard")
    Guard().run("get", 0, fail, OSError("a"))
    assert caplog.records[0].exc_info


def test_failures_of_many_threads_are_all_counted(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    guard, start = Guard(), threading.Barrier(8)

    def run() -> None:
        start.wait()
        for _ in range(500):
            guard.run("get", 0, fail, OSError("a"))

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert guard.failures["get"] == 4000
    assert len(caplog.records) == 1
