"""Our metrics on a port of their own: served where asked for, and gone when stopped."""

from __future__ import annotations

import socket
import urllib.request
from collections.abc import Iterator

import pytest

from hicache_backends.errors import ConfigError
from hicache_storage.config.sections import SglangSection
from hicache_storage.metrics import Metrics
from hicache_storage.sglang.exposition import serve_metrics


@pytest.fixture
def port() -> Iterator[int]:
    """A free port, with two free ones behind it."""
    for first in range(21_000, 29_000, 3):
        with socket.socket() as one, socket.socket() as two, socket.socket() as three:
            try:
                for offset, held in enumerate((one, two, three)):
                    held.bind(("127.0.0.1", first + offset))
            except OSError:
                continue
        yield first
        return
    pytest.fail("no free ports")


def scrape(port: int, host: str = "127.0.0.1") -> str:
    with urllib.request.urlopen(f"http://{host}:{port}/metrics", timeout=10) as reply:
        return str(reply.read().decode())


def refused(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def test_no_port_serves_nothing() -> None:
    serve_metrics(SglangSection(), 3)()


def test_each_rank_has_a_port_of_its_own(port: int) -> None:
    Metrics.create("memory", "exposition")
    stops = [serve_metrics(SglangSection(metrics_port=port), rank) for rank in range(3)]
    for rank in range(3):
        assert "hicache" in scrape(port + rank)
    for stop in stops:
        stop()
    assert all(refused(port + rank) for rank in range(3))


def test_replicas_that_are_not_told_apart_take_the_next_ports_of_their_rank(port: int) -> None:
    section, stops = SglangSection(metrics_port=port), []
    for _replica in range(3):
        stops.append(serve_metrics(section, 0, ranks=1, replicas=3))
    assert all(scrape(port + replica) for replica in range(3))
    with pytest.raises(ConfigError, match="HICACHE_STORAGE_SGLANG__METRICS_PORT"):
        serve_metrics(section, 0, ranks=1, replicas=3)
    for stop in stops:
        stop()


def test_a_stopped_port_can_be_served_again(port: int) -> None:
    for _ in range(3):
        stop = serve_metrics(SglangSection(metrics_port=port), 0)
        assert scrape(port)
        stop()


def test_others_reach_it_only_where_the_configuration_says_so(port: int) -> None:
    """Every address of 127.0.0.0/8 is this machine; only one of them is listened on."""
    stop = serve_metrics(SglangSection(metrics_port=port), 0)
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.2", port)) != 0
    stop()
    stop = serve_metrics(SglangSection(metrics_port=port, metrics_host="0.0.0.0"), 0)  # noqa: S104  # the point
    assert scrape(port, "127.0.0.2")
    stop()


def test_a_port_in_use_ends_the_start_by_its_key(port: int) -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", port + 1))
        held.listen()
        with pytest.raises(ConfigError, match=rf"sglang\.metrics_port.*127\.0\.0\.1:{port + 1}"):
            serve_metrics(SglangSection(metrics_port=port), 1)


@pytest.mark.parametrize(
    ("section", "rank"),
    [
        (SglangSection(metrics_port=65_535), 1),
        (SglangSection(metrics_port=9_000, metrics_host="no.such.host.invalid"), 0),
        (SglangSection(metrics_port=9_000, metrics_host="203.0.113.1"), 0),  # nobody's address
    ],
)
def test_an_address_that_cannot_be_listened_on_ends_the_start(
    section: SglangSection, rank: int
) -> None:
    with pytest.raises(ConfigError, match=r"sglang\.metrics_port: cannot listen on"):
        serve_metrics(section, rank)
