"""What SGLang asks of a storage backend: its calls, as they come from its threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

METHODS = (
    *("batch_exists", "batch_get", "batch_set", "batch_get_v1", "batch_set_v1"),
    *("batch_exists_v2", "batch_get_v2", "batch_set_v2", "clear", "close"),
)


@dataclass(frozen=True)
class Call:
    """One call that has returned; `thread` is SGLang's name for the thread's work."""

    method: str
    args: tuple[Any, ...]
    result: Any
    thread: str


def record(backend: Any) -> list[Call]:
    """The calls of a backend from now on, in the order in which they return."""
    calls: list[Call] = []
    for name in METHODS:
        setattr(backend, name, _recorded(calls, name, getattr(backend, name)))
    return calls


def _recorded(calls: list[Call], name: str, method: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        result = method(*args, **kwargs)
        thread = threading.current_thread().name.partition("(")[2].rstrip(")")
        calls.append(Call(name, (*args, *kwargs.values()), result, thread))
        return result

    return call
