"""What the registry costs the server: which commands, how long, how much memory."""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import redis

from hicache_backends.deadline import Deadline
from kvmanager import keys
from kvmanager.connection import Pool
from kvmanager.control.sweep import Sweep
from kvmanager.driver import Driver
from kvmanager.endpoint import Endpoint
from kvmanager.options import RegistryOptions
from tests.kvmanager.members import NAMESPACE, Cluster, Store, digests, eventually, soon
from tests.kvmanager.servers import Server

Result = TypeVar("Result")
TAG = keys.tag(NAMESPACE.fingerprint)
SCRIPTS = Path(keys.__file__).parent / "scripts"
PATIENT = RegistryOptions(timeout_ms=20_000)
UNBOUNDED = {"KEYS", "FLUSHDB", "FLUSHALL", "HGETALL", "HKEYS", "HVALS", "SMEMBERS", "SORT", "SCAN"}

BOUNDED = {
    ("totals", "HGETALL"),  # its names are of a fixed vocabulary
    ("walk", "HGETALL"),  # of a bucket whose size it has asked for; larger ones by HSCAN
}


def fill(store: Store, pages: int, batch: int = 512) -> list[bytes]:
    chain = digests(pages)
    entries = store.chain(chain)
    for start in range(0, pages, batch):
        store.registry.publish(entries[start : start + batch], b"", soon(20_000))
    return chain


class Monitored(threading.Thread):
    """The commands that a server carries out, scripts' inner ones included."""

    def __init__(self, server: Server) -> None:
        super().__init__(daemon=True)
        self.seen: list[str] = []
        self._server = server
        self._mark = os.urandom(8).hex()
        self._ready = threading.Event()

    def run(self) -> None:
        with self._server.client() as client, client.monitor() as monitor:
            self._ready.set()
            for said in monitor.listen():
                command = str(said["command"])
                if self._mark in command:
                    return
                self.seen.append(command)

    def __enter__(self) -> Monitored:
        self.start()
        assert self._ready.wait(5)
        return self

    def __exit__(self, *failure: object) -> None:
        with self._server.client() as client:
            client.echo(self._mark)
        self.join(10)


def sweep_all(server: Server, each: Callable[[Callable[[], bool]], bool]) -> None:
    """A pass that finds everything dead, one step at a time."""
    driver = Driver(Pool(Endpoint.parse(server.url), 1000), PATIENT)
    with server.client() as client:
        client.delete(b"w" + TAG)
    work = Sweep(TAG, private_ms=-1000, shared_ms=-1000)
    while each(lambda: driver.run(work.step(), soon())):
        pass
    driver.pool.clear()


def test_no_command_looks_at_everything(server: Server, cluster: Cluster) -> None:
    store = cluster.store(options=PATIENT)
    chain = fill(store, 5000)
    with Monitored(server) as monitored:
        token, _ = store.registry.claim(fresh := digests(100), soon())
        store.write(store.chain(fresh), token)
        store.lookup(chain[:100])
        store.registry.remove(store.chain(chain[:100]), soon(), touched_ms=[0] * 100)
        store.registry.report_bad(chain[5], b"there", soon())
        store.registry.clear_namespace(soon())
        store.settled()
        sweep_all(server, lambda step: step())
    names = {command.split(" ", 1)[0].upper() for command in monitored.seen}
    assert {"EVALSHA", "UNLINK", "HSETNX", "HGET", "HMGET", "HSCAN"} <= names
    assert names & UNBOUNDED == set()
    with server.client() as client:
        assert not [key for key in client.scan_iter(count=1000) if key.startswith(b"p")]


def test_no_command_keeps_the_server_busy_for_long(server: Server, cluster: Cluster) -> None:
    store = cluster.store(options=PATIENT, start=False)
    chain = fill(store, 50_000)
    with server.client() as client:
        rounds = [cpu_of_whole_calls(client, store, chain[:1024]) for _ in range(5)]
        least = {name: min(spent[name] for spent in rounds) for name in rounds[0]}
        assert {name: ms for name, ms in least.items() if ms >= 5} == {}
        store.registry.clear_namespace(soon())
        took = []

        def timed(step: Callable[[], bool]) -> bool:
            ms, more = cpu_ms(client, step)
            took.append(ms)
            return more

        sweep_all(server, timed)
    took.sort()
    assert len(took) > 50_000 / 16 / 512
    assert took[-2] < 5


def cpu_of_whole_calls(client: redis.Redis, store: Store, stored: list[bytes]) -> dict[str, float]:
    """Of calls of as many keys as a script takes."""
    entries = store.chain(digests(1024))
    asked = [entry.digest for entry in entries]
    calls: dict[str, Callable[[], object]] = {
        "claim": lambda: store.registry.claim(asked, soon()),
        "publish": lambda: store.registry.publish(entries, b"8 bytes!", soon()),
        "lookup": lambda: store.lookup(stored),
        "remove": lambda: store.registry.remove(entries[::-1], soon(), touched_ms=[0] * 1024),
    }
    return {name: cpu_ms(client, call)[0] for name, call in calls.items()}


def cpu_ms(client: redis.Redis, call: Callable[[], Result]) -> tuple[float, Result]:
    """Processor time of the server; waiting for a processor does not count."""
    before = client.info("cpu")
    result = call()
    after = client.info("cpu")
    spent = sum(after[name] - before[name] for name in ("used_cpu_user", "used_cpu_sys"))
    return spent * 1000, result


def test_every_script_names_the_keys_that_it_touches() -> None:
    for path in SCRIPTS.glob("*.lua"):
        text = path.read_text()
        header = "\n".join(line for line in text.splitlines() if line.startswith("--"))
        for letter, tagged in re.findall(r"'([a-z])' \.\. (tag|ARGV)", text):
            assert f"{letter}{{tag}}" in header, f"{path.name} touches {letter}{{tag}} ({tagged})"
        for command in UNBOUNDED:
            assert f"'{command}'" not in text or (path.stem, command) in BOUNDED, path.name


@pytest.mark.parametrize("pages", [20_000, 50_000])
def test_memory_per_page(server: Server, cluster: Cluster, pages: int) -> None:
    store = cluster.store(options=PATIENT)
    with server.client() as client:
        before = client.info("memory")["used_memory"]
        fill(store, pages)
        used = client.info("memory")["used_memory"] - before
    assert used / pages <= 120


@pytest.mark.slow
def test_memory_and_cost_at_a_million_pages(own_server: Server) -> None:
    with Cluster(own_server.url) as cluster, own_server.client() as client:
        store = cluster.store(options=PATIENT)
        before = client.info("memory")["used_memory"]
        few = fill(store, 10_240)
        small = lookup_us(store, few)
        many = fill(store, 989_760)
        large = lookup_us(store, many)
        used = client.info("memory")["used_memory"] - before
    assert used / 1_000_000 <= 90
    assert large / small <= 2  # the bar of 1.3 is the benchmark's, on a machine of its own


def lookup_us(store: Store, chain: list[bytes]) -> float:
    batches = [chain[n : n + 24] for n in range(0, len(chain) - 24, len(chain) // 200)]
    rounds = []
    for _ in range(7):
        began = time.perf_counter()
        for batch in batches:
            assert store.lookup(batch).prefix == 24
        rounds.append((time.perf_counter() - began) / len(batches) * 1e6)
    return min(rounds)


def test_one_request_is_one_round_trip(cluster: Cluster) -> None:
    store = cluster.store(start=False)
    chain = digests(128)
    entries = store.chain(chain)
    calls: list[Callable[[], object]] = [
        lambda: store.registry.claim(chain, soon()),
        lambda: store.write(entries, b"8 bytes!"),
        lambda: store.lookup(chain, prefix=False),
        lambda: store.lookup(chain),
        lambda: store.registry.abort(chain, b"8 bytes!", soon()),
        lambda: store.registry.report_bad(chain[0], b"there", soon()),
        lambda: store.registry.remove(entries, soon()),
    ]
    for call in calls:
        call()  # loads the script
    for call in calls:
        before = int(store.registry.stats()["round_trips"])
        call()
        assert int(store.registry.stats()["round_trips"]) == before + 1


@pytest.fixture
def spinner() -> Iterator[None]:
    """A thread that keeps the interpreter busy."""
    done = threading.Event()

    def spin() -> None:
        while not done.is_set():
            sum(range(1000))

    thread = threading.Thread(target=spin)
    thread.start()
    yield
    done.set()
    thread.join()


def test_a_lookup_beside_a_busy_thread_gives_the_interpreter_up_once(
    cluster: Cluster, spinner: None
) -> None:
    store = cluster.store(start=False)
    chain = fill(store, 128)
    took = []
    for _ in range(40):
        began = time.perf_counter()
        assert store.lookup(chain).prefix == 128
        took.append((time.perf_counter() - began) * 1000)
    took.sort()
    assert took[len(took) // 4] < 9  # one hand-over is about 5.3 ms, two are 10.6


def test_announcing_keeps_to_its_rate_and_lets_calls_in_between(
    server: Server, cluster: Cluster
) -> None:
    options = RegistryOptions(heartbeat_ms=50, ttl_ms=5000, announce_pages_per_s=20_000)
    store = cluster.store(options=options)
    store.settled()
    entries = store.chain(digests(10_000))
    store.pages = {entry.digest: entry for entry in entries}
    for start in range(0, 10_000, 1000):
        store.registry.publish(entries[start : start + 1000], b"", soon())
    with server.client() as client:
        began = time.monotonic()
        client.flushall()
    eventually(lambda: int(store.registry.stats()["announced"]) > 0)
    lookups = 0
    while int(store.registry.stats()["announced"]) < 10_000:
        store.registry.lookup(digests(24), [store.member.medium], Deadline.after_ms(1000))
        lookups += 1
    assert 0.35 < time.monotonic() - began < 4  # half a second by its rate
    assert lookups > 20, "calls wait for what is announced"
