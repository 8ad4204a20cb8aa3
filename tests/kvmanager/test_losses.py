"""A Redis that comes back empty: that settings are gone is said."""

from __future__ import annotations

from pathlib import Path

import redis

from tests.kvmanager.http_fixtures import server_binary
from tests.kvmanager.http_service import Service
from tests.kvmanager.members import eventually
from tests.kvmanager.servers import Server
from tests.kvmanager.test_control import ask

__all__ = ["server_binary"]


def test_settings_that_vanish_with_their_redis_are_logged_once(
    own_server: Server, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    service = Service(own_server.url, "--settle-every", "0.1", log=log).start()
    try:
        for tenant in ("ours", "theirs"):
            assert ask(service, "PUT", f"/v1/tenants/{tenant}", {"quota_bytes": 1})[0] == 200
        with own_server.client() as client:
            before = looks(client)
            eventually(lambda: looks(client) > before + 12)
        assert "any more" not in log.read_text()
        own_server.kill()
        own_server.start()
        eventually(lambda: "for the tenants 'ours', 'theirs': they were reset" in log.read_text())
        assert service.terminate() == 0
        assert log.read_text().count("nothing is set any more") == 1
    finally:
        service.stop()


def looks(client: redis.Redis) -> int:
    """How often sets were gone through: that of the tenants, and that of the namespaces."""
    stats = client.info("commandstats")
    return sum(told["calls"] for name, told in stats.items() if "sscan" in name)
