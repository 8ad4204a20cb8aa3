"""A call without its I/O: a generator that yields requests and is sent their replies."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, TypeVar

from kvmanager.probe import Probe
from kvmanager.resp import NoScript
from kvmanager.scripts import Call

T = TypeVar("T")
Flow = Generator[bytes | Probe, Any, T]


def answer(call: Call | Probe) -> Flow[Any]:
    """The reply to one call, whose script is loaded where the server does not know it."""
    try:
        reply = yield call.request
    except NoScript:
        yield call.script.load()
        reply = yield call.request
    return reply
