"""The service's log, on standard error: lines for people, or one JSON object each."""

from __future__ import annotations

import json
import logging
from contextvars import ContextVar
from datetime import datetime, timezone

TRACE: ContextVar[str] = ContextVar("trace", default="")
"""The id of the trace that the present request is part of; "" where there is none."""
TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
_OF_EVERY_RECORD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Time (UTC, ISO 8601), level, logger, message, the trace's id where requests are traced, what
    `extra` adds, and the traceback where there is one; never a line end within."""

    def format(self, record: logging.LogRecord) -> str:
        told = {
            "time": datetime.fromtimestamp(record.created, timezone.utc).isoformat(),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        trace = TRACE.get()
        if trace:
            told["trace_id"] = trace
        told |= {k: v for k, v in vars(record).items() if k not in {*_OF_EVERY_RECORD, *told}}
        if record.exc_info:
            told["traceback"] = self.formatException(record.exc_info)
        return json.dumps(told, default=str)


def start_logging(as_json: bool, level: str) -> None:
    """Send every logger's records, and Python's warnings, to standard error."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else logging.Formatter(TEXT))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(True)
