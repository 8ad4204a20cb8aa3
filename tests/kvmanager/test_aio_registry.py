"""The asyncio client keeps every promise that the threaded one keeps: the same tests, over it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from kvmanager.aio import AsyncRegistry
from kvmanager.session import RedisRegistry
from tests.kvmanager.members import Cluster, Store
from tests.kvmanager.servers import Server
from tests.kvmanager.test_registry import *  # noqa: F403  # every test, collected here too

CALLS = {"lookup", "claim", "publish", "abort", "remove", "report_bad", "clear_namespace"}


class Blocking:
    """An `AsyncRegistry` for tests written for threads: calls run in a loop of another thread."""

    def __init__(self, session: RedisRegistry, loop: asyncio.AbstractEventLoop) -> None:
        self._registry = AsyncRegistry(session)
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        attribute = getattr(self._registry, name)
        return self._blocking(attribute) if name in CALLS else attribute

    def close(self, timeout_ms: float) -> None:
        self._blocking(self._registry.close)(timeout_ms)

    def _blocking(self, call: Any) -> Any:
        return lambda *args, **options: asyncio.run_coroutine_threadsafe(
            call(*args, **options), self._loop
        ).result(20)


class AsyncCluster(Cluster):
    """Members whose calls go over asyncio."""

    def __init__(self, url: str, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(url)
        self._loop = loop

    def store(self, **options: Any) -> Store:
        made = super().store(**options)
        made.registry = cast(RedisRegistry, Blocking(made.registry, self._loop))
        return made


@contextmanager
def async_members(url: str) -> Iterator[Cluster]:
    """Members whose calls run in an event loop of their own."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    try:
        with AsyncCluster(url, loop) as members:
            yield members
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.fixture
def cluster(server: Server) -> Iterator[Cluster]:
    with async_members(server.url) as members:
        yield members
