"""Recorded traffic comes back as it was, and recording never waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hicache_backends.errors import ConfigError, MissingExtra
from hicache_backends.identity import Namespace
from hicache_backends.memory import MemoryStorage
from hicache_storage import access_log
from hicache_storage.access_log import Access, AccessLog, read_access_log, read_access_log_async
from hicache_storage.page_store import PageStore
from hicache_storage.tools.traces import read_chains, read_requests

NAMESPACE = Namespace("m", "r", "bf16", "page_first", 1, 64)


def said(accesses: list[Access]) -> list[tuple[str, tuple[str, ...], int]]:
    return [(a.op, a.keys, a.hits) for a in accesses]


def test_what_is_recorded_is_read_back_in_order(tmp_path: Path) -> None:
    before = time.time_ns() // 1000
    log = AccessLog(tmp_path / "log")
    log.record("exists", ["a", "b"], 1)
    log.record("get", [], 0)
    log.record("set", ["é" * 500], 1)
    log.close()
    log.close()
    accesses = list(read_access_log(tmp_path / "log"))
    assert said(accesses) == [("exists", ("a", "b"), 1), ("get", (), 0), ("set", ("é" * 500,), 1)]
    assert all(before <= a.time_us <= time.time_ns() // 1000 for a in accesses)


async def test_an_event_loop_reads_the_same(tmp_path: Path) -> None:
    log = AccessLog(tmp_path, rotate_bytes=1)
    for i in range(3):
        log.record("get", [str(i)], i)
    log.close()
    expected = list(read_access_log(tmp_path))
    assert [a async for a in read_access_log_async(tmp_path)] == expected
    assert len(expected) == 3


def test_files_rotate_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access_log, "_BATCH_ROWS", 10)
    log = AccessLog(tmp_path, rotate_bytes=1, keep=3)
    for i in range(100):
        log.record("get", [f"page {i}"], 1)
    log.close()
    assert len(list(tmp_path.glob("*.arrows"))) == 3
    last = list(read_access_log(tmp_path))
    assert [a.keys[0] for a in last] == [f"page {i}" for i in range(70, 100)]


def test_too_much_at_once_is_dropped_counted_and_never_waits(tmp_path: Path) -> None:
    log = AccessLog(tmp_path, max_queued_keys=1000)
    keys = [f"{i:064x}" for i in range(100)]
    slowest = 0.0
    for _ in range(2000):
        began = time.perf_counter()
        log.record("get", keys, 100)
        slowest = max(slowest, time.perf_counter() - began)
    log.close()
    recorded = len(list(read_access_log(tmp_path)))
    assert log.dropped > 0
    assert recorded + log.dropped == 2000
    assert slowest < 2, "recording waited for the disk"
    log.record("get", keys, 100)
    assert log.dropped + recorded == 2001


def test_a_killed_process_leaves_what_it_had_written(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from hicache_storage.access_log import AccessLog\n"
        "log = AccessLog(sys.argv[1])\n"
        "log.record('get', ['a'], 1)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code, tmp_path], env={"PYTHONPATH": ".:backends"}
    )
    try:
        deadline = time.monotonic() + 30
        while not any(list(read_access_log(f)) for f in tmp_path.glob("*.arrows")):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert said(list(read_access_log(tmp_path))) == [("get", ("a",), 1)]


@pytest.mark.parametrize("keep", [0, 1, 40, 400, -1])
def test_a_cut_file_is_read_up_to_the_cut(
    tmp_path: Path, keep: int, caplog: pytest.LogCaptureFixture
) -> None:
    log = AccessLog(tmp_path)
    log.record("get", ["a"], 1)
    log.close()
    file = next(tmp_path.glob("*.arrows"))
    file.write_bytes(file.read_bytes()[:keep])
    assert said(list(read_access_log(tmp_path))) in ([], [("get", ("a",), 1)])


def test_a_foreign_file_is_nothing_and_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "x.arrows").write_bytes(b"not arrow at all" * 100)
    assert list(read_access_log(tmp_path)) == []
    assert "x.arrows" in caplog.text


def test_a_directory_that_cannot_be_written_stops_the_log_not_the_caller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_log, "_FLUSH_SECONDS", 0.0)
    log = AccessLog(tmp_path / "log")
    (tmp_path / "log").rmdir()
    log.record("get", ["a"], 1)
    log._thread.join(10)
    log.record("get", ["a"], 1)
    assert log.dropped == 1
    assert "cannot be written" in caplog.text
    log.close()


def test_nothing_to_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no access log"):
        list(read_access_log(tmp_path / "absent"))
    with pytest.raises(ConfigError, match="above 0"):
        AccessLog(tmp_path, keep=0)


def test_without_pyarrow_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(MissingExtra, match=r"hicache-storage\[tools\]"):
        AccessLog(tmp_path)


def test_a_log_is_replayed_as_a_trace(tmp_path: Path) -> None:
    with PageStore(
        MemoryStorage(NAMESPACE), NAMESPACE, access_log=AccessLog(tmp_path / "log")
    ) as store:
        for prompt in (["a", "b"], ["a", "b", "c"], ["d"]):
            found = store.exists(prompt)
            rest = prompt[found:]
            store.set(rest, [b"x" * NAMESPACE.page_bytes] * len(rest), parent=None)
    assert read_chains(tmp_path / "log") == [(0, 1), (0, 1, 2), (3,)]
    (file,) = (tmp_path / "log").glob("*.arrows")
    times = [request.timestamp_ms for request in read_requests(file)]
    assert times[0] == 0
    assert times == sorted(times)
    hits = [a.hits for a in read_access_log(file) if a.op == "exists"]
    assert hits == [0, 2, 0]
