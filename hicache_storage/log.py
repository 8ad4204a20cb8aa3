"""Structured logging on the standard library. Importing it, and this library, sets up nothing.

Messages are ordinary log records; fields are given as `extra={...}` and kept by both formatters:

    log.warning("registry down", extra={"endpoint": "redis://registry", "failures": 3})
    ts=2026-01-31T09:30:00.125Z level=warning logger=kvmanager pid=7 msg="registry down" failures=3
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from datetime import datetime, timezone

PACKAGES = ("hicache_backends", "kvmanager", "hicache_storage")
_OWN = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class KeyValueFormatter(logging.Formatter):
    """One `key=value ...` line a record."""

    def format(self, record: logging.LogRecord) -> str:
        return " ".join(f"{key}={_quoted(value)}" for key, value in _fields(self, record))


class JsonFormatter(logging.Formatter):
    """One JSON object a record, on one line."""

    def format(self, record: logging.LogRecord) -> str:
        return json.dumps(dict(_fields(self, record)), default=str)


def configure(level: str = "WARNING", *, as_json: bool = False) -> None:
    """Send this library's records to standard error. For programs, never called by the library."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else KeyValueFormatter())
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False


def _fields(
    formatter: logging.Formatter, record: logging.LogRecord
) -> Iterator[tuple[str, object]]:
    when = datetime.fromtimestamp(record.created, timezone.utc)
    yield "ts", when.isoformat(timespec="milliseconds").replace("+00:00", "Z")
    yield "level", record.levelname.lower()
    yield "logger", record.name
    yield "pid", record.process
    yield "msg", record.getMessage()
    for key, value in vars(record).items():
        if key not in _OWN:
            yield key, value
    if record.exc_info:
        yield "error", formatter.formatException(record.exc_info)


def _quoted(value: object) -> str:
    text = str(value)
    plain = text and not any(c in ' "=\\' or not c.isprintable() for c in text)
    return text if plain else json.dumps(text, ensure_ascii=False)
