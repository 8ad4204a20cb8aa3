"""This library's metrics on a port of their own, for those who don't scrape SGLang's."""

from __future__ import annotations

import errno
from collections.abc import Callable

import prometheus_client

from hicache_backends.errors import ConfigError
from hicache_storage.config.sections import SglangSection


def serve_metrics(
    section: SglangSection, rank: int, *, ranks: int = 1, replicas: int = 1
) -> Callable[[], None]:
    """Serve /metrics where a port is configured; returns what stops it. Raises ConfigError.

    The port is the configured one plus `rank`. Of `replicas` that are not told apart, of `ranks`
    each, every one takes the first port of its rank that is free.
    Without a port they come with SGLang's: it sets PROMETHEUS_MULTIPROC_DIR before this library
    is imported, so that one scrape has both.
    """
    if section.metrics_port is None:
        return lambda: None
    for replica in range(replicas):
        port = section.metrics_port + rank + replica * ranks
        try:
            server, thread = prometheus_client.start_http_server(port, addr=section.metrics_host)
            break
        except (OSError, OverflowError) as error:
            if getattr(error, "errno", None) == errno.EADDRINUSE and replica + 1 < replicas:
                continue
            taken = getattr(error, "errno", None) == errno.EADDRINUSE
            raise ConfigError(
                f"sglang.metrics_port: cannot listen on {section.metrics_host}:{port}: {error}"
                + "; give each server of a machine ports of its own, such as by "
                "HICACHE_STORAGE_SGLANG__METRICS_PORT in its environment" * taken
            ) from None

    def stop() -> None:
        server.shutdown()
        server.server_close()
        thread.join(1)

    return stop
