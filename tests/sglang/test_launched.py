"""A server launched with the flags that `sglang-args` prints: its pages come back from storage, and
its own scrape has our metrics."""

from __future__ import annotations

import re
import socket
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import redis

from hicache_storage.tools.sglang_args import Tuning, launch_flags, words
from tests.sglang.harness.server import Options, Server, prompt, serve
from tests.sglang.harness.waiting import wait_until
from tests.sglang.harness.zygote import Zygote

RANKS = 2
PAGES = 62
NEW_TOKENS = 8  # they fill no page more
PAGE_BYTES = 16 * 4 * 2 * 32 * 2  # tokens, layers, keys and values, of one head, in bf16
CAPACITY = 1 << 30
PROBE = 1  # the page of the self-test counts too
CONFIG = """
[storage.nvme]
path = "{path}"
capacity = {capacity}
free_floor = 0
page_size = 16
[global_kvmanager]
enabled = true
endpoint = "embedded"
[sglang]
metrics_port = {port}
"""
REPORT_S = 10


@pytest.mark.timeout(300)  # two ranks and a start from nothing, on as few as two cores
def test_the_printed_flags_give_hits_from_storage_metrics_in_one_scrape_and_reports(
    server: Server, metrics_port: int, tmp_path: Path
) -> None:
    cold = server.generate(prompt(1000), NEW_TOKENS)
    wait_until(lambda: counted(server, "hicache_stored_total") == RANKS * (PAGES + PROBE), "pages")
    warm = server.generate(prompt(1000), NEW_TOKENS)
    server.flush_cache()
    stored = server.generate(prompt(1000), NEW_TOKENS)
    assert (cold.device, cold.storage) == (0, 0)
    assert (warm.device, warm.storage) == (16 * PAGES, 0)
    assert (stored.device, stored.storage, stored.backend) == (0, 16 * PAGES, "HiCacheL3")
    assert cold.output_ids == warm.output_ids == stored.output_ids

    wait_until(lambda: counted(server, "hicache_stored_pages") == RANKS * PAGES, "the gauges")
    page = server.metrics()
    assert value(page, "hicache_hit_total") == RANKS * (PAGES + PROBE)
    assert value(page, "hicache_stored_bytes") == RANKS * PAGES * PAGE_BYTES
    assert value(page, "hicache_capacity_bytes") == CAPACITY, "of one medium, not of each rank"
    assert value(page, "sglang:prefetched_tokens_total") == RANKS * 16 * PAGES

    own = [scraped(metrics_port + rank) for rank in range(RANKS)]
    for name in ("hicache_stored_total", "hicache_hit_total", "hicache_stored_pages"):
        assert sum(value(text, name) for text in own) == value(page, name)

    found = 16 * PAGES
    expected = {
        "tokens.l1": found,
        "tokens.l2": 0,
        "tokens.l3": found,
        "tokens.recomputed": 3 * 1000 - 2 * found,
        "prefetch.used": RANKS * PAGES,
        "put.stored": RANKS * (PAGES + PROBE),
        "get.hits": RANKS * (PAGES + PROBE),
    }
    url = f"unix://{tmp_path}/l3/.registry/valkey.sock"
    wait_until(
        lambda: {name: reported(url, name) for name in expected} == expected,
        "the reports of all ranks, each token told once",
        wait_s=2 * REPORT_S,
    )


def reported(url: str, name: str) -> int:
    """The sum of a counter over all namespaces."""
    with redis.Redis.from_url(url) as client:
        return sum(int(client.hget(b"t" + tag, name) or 0) for tag in client.smembers("g"))


@pytest.fixture
def metrics_port() -> int:
    """The first of two that are free, and that no connection is given meanwhile."""
    for port in range(21_000, 29_000, 2):
        with closing(socket.socket()) as first, closing(socket.socket()) as second:
            try:
                first.bind(("127.0.0.1", port))
                second.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port
    pytest.fail("no free ports")


@pytest.fixture
def server(zygote: Zygote, qwen2: Path, tmp_path: Path, metrics_port: int) -> Iterator[Server]:
    file = tmp_path / "l3.toml"
    file.write_text(CONFIG.format(path=tmp_path / "l3", capacity=CAPACITY, port=metrics_port))
    tuning = Tuning(prefetch_policy="wait_complete", prefetch_threshold=16)
    arguments = ["--enable-metrics", *words(launch_flags(file, tuning))]
    options = Options(tp_size=RANKS, arguments=arguments)
    # as a user does: prometheus_client learns at its import that several processes are scraped
    with serve(zygote, qwen2, tmp_path / "log", options, fresh=True) as running:
        yield running


def counted(server: Server, name: str) -> float:
    time.sleep(0.2)  # a scrape costs the server tens of milliseconds
    return value(server.metrics(), name)


def value(page: str, name: str) -> float:
    found = re.findall(rf"^{name}(?:{{.*}})? (\S+)$", page, re.MULTILINE)
    return sum(map(float, found))


def scraped(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as reply:
        text: str = reply.read().decode()
    return text
