"""Log lines a person and a machine can read, and no set-up at import."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from hicache_storage import log

logger = logging.getLogger("hicache_storage.test")


@pytest.fixture
def configured() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in log.PACKAGES]
    before = [(lg.handlers[:], lg.level, lg.propagate) for lg in loggers]
    yield
    for lg, (handlers, level, propagate) in zip(loggers, before, strict=True):
        lg.handlers[:], lg.propagate = handlers, propagate
        lg.setLevel(level)


@pytest.mark.usefixtures("configured")
def test_fields_become_key_value_pairs(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info")
    logger.info("stored %d pages", 3, extra={"path": "/kv", "why": 'a "b" = c\nd', "empty": ""})
    line = capsys.readouterr().err.rstrip("\n")
    assert "\n" not in line
    assert "level=info logger=hicache_storage.test pid=" in line
    assert line.endswith(r'msg="stored 3 pages" path=/kv why="a \"b\" = c\nd" empty=""')


@pytest.mark.usefixtures("configured")
def test_json_lines_hold_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info", as_json=True)
    try:
        raise ValueError("bad\npage")
    except ValueError:
        logger.exception("failed", extra={"pages": 3})
    line = capsys.readouterr().err
    said = json.loads(line)
    assert line.count("\n") == 1
    assert (said["level"], said["msg"], said["pages"]) == ("error", "failed", 3)
    assert said["error"].endswith("ValueError: bad\npage")


@pytest.mark.usefixtures("configured")
def test_configuring_twice_says_things_once(capsys: pytest.CaptureFixture[str]) -> None:
    log.configure("info")
    log.configure("warning")
    logger.info("hidden")
    logger.warning("shown")
    assert capsys.readouterr().err.count("\n") == 1


def test_importing_the_library_sets_up_no_logging_and_no_signal_handler() -> None:
    code = (
        "import logging, signal\n"
        "signals = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGINT)}\n"
        "import hicache_storage.page_store, hicache_storage.metrics, hicache_storage.log\n"
        "import hicache_storage.access_log, hicache_storage.config, kvmanager.registry\n"
        "names = ['', 'hicache_storage', 'hicache_backends', 'kvmanager']\n"
        "assert not any(logging.getLogger(n).handlers for n in names)\n"
        "assert signals == {s: signal.getsignal(s) for s in signals}\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ".:backends"})
