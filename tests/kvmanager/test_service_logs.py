"""Lines of JSON, whatever is logged."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from tests.kvmanager.http_service import REPOSITORY

PROGRAM = """
import logging, warnings
from kvmanager.service.logs import start_logging

start_logging(True, "info")
log = logging.getLogger("somebody")
log.debug("not told")
log.warning("two\\nlines of %s", "it", extra={"tag": b"x", "failures": 3, "level": "kept"})
try:
    1 / 0
except ZeroDivisionError:
    log.exception("failed")
warnings.warn("soon gone", DeprecationWarning)
logging.getLogger("uvicorn.error").error("of the server")
"""


def records() -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-W", "always", "-c", PROGRAM],
        env={"PYTHONPATH": f"{REPOSITORY}:{REPOSITORY / 'backends'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not done.stdout
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_everything_is_one_object_a_line_with_what_was_added_and_tracebacks() -> None:
    lines, failure, warning, server = records()
    assert lines["message"] == "two\nlines of it"
    assert (lines["failures"], lines["level"], lines["logger"]) == (3, "warning", "somebody")
    assert "ZeroDivisionError" in failure["traceback"]
    assert "soon gone" in warning["message"]
    assert (server["logger"], server["level"]) == ("uvicorn.error", "error")
    assert all(record["time"].endswith("+00:00") for record in (lines, failure, warning, server))
