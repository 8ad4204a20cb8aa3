"""The service keeps every promise that Redis itself keeps: the same tests, over HTTP."""

from __future__ import annotations

from tests.kvmanager.http_fixtures import cluster, server_binary, service
from tests.kvmanager.test_registry import *  # noqa: F403  # every test, collected here too

__all__ = ["cluster", "server_binary", "service"]
