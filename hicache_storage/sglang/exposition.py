"""This library's metrics on a port of their own, for those who don't scrape SGLang's."""

from __future__ import annotations

from collections.abc import Callable

import prometheus_client

from hicache_backends.errors import ConfigError
from hicache_storage.config.sections import SglangSection


def serve_metrics(section: SglangSection, rank: int) -> Callable[[], None]:
    """Serve /metrics where a port is configured; returns what stops it. Raises ConfigError.

    Without a port they come with SGLang's: it sets PROMETHEUS_MULTIPROC_DIR before this library
    is imported, so that one scrape has both.
    """
    if section.metrics_port is None:
        return lambda: None
    port = section.metrics_port + rank
    try:
        server, thread = prometheus_client.start_http_server(port, addr=section.metrics_host)
    except (OSError, OverflowError) as error:
        raise ConfigError(
            f"sglang.metrics_port: cannot listen on {section.metrics_host}:{port}: {error}"
        ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(1)

    return stop
