"""A Valkey of a test's own, as the registry's tests have it."""

from __future__ import annotations

from tests.kvmanager.conftest import own_server
from tests.kvmanager.http_fixtures import server_binary

__all__ = ["own_server", "server_binary"]
