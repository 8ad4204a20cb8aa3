"""A process that is killed in the middle of its I/O: nothing of it stays but its pages."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from hicache_backends.errors import StorageError
from hicache_storage.tools.line_process import LineProcess
from hicache_storage.tools.replay_plan import NodeOrders, NodeReport
from tests.backends.usrbio.conftest import shared_memory
from tests.hicache_storage.chains import write_trace
from tests.threefs.replay import hosts
from tests.threefs.stand_in import ThreeFs

PAGES = 48
BLOCK_BYTES = 64 << 10
MANY = 24
HANGS = {"usrbio": {"hang_share": 0.3}, "fuse": {"fuse_hang": 1.0}}
CHAINS = [[*range(number * PAGES, (number + 1) * PAGES)] for number in range(2 * MANY + 1)]


class Clients:
    """Processes of a replay on two hosts, over one registry."""

    def __init__(self, directory: Path, io_engine: str) -> None:
        self._directory = directory
        self._trace = write_trace(directory / "trace.jsonl", CHAINS)
        self._io_engine = io_engine

    @contextmanager
    def on(self, host: ThreeFs) -> Iterator[LineProcess]:
        orders = NodeOrders(
            trace=str(self._trace),
            node=0,
            block_bytes=BLOCK_BYTES,
            backend="3fs",
            options={
                "mount_point": f"{host.mount}/kv",
                "io_engine": self._io_engine,
                "capacity_bytes": 1 << 30,
                "free_floor_bytes": 0,
                "staging_bytes": 8 << 20,
            },
            front_blocks=0,
            registry="embedded",
            registry_dir=str(self._directory / "registry"),
        )
        with LineProcess.of_module("a client", "hicache_storage.tools.replay_node") as client:
            client.send(json.dumps(dataclasses.asdict(orders)))
            client.answer()
            yield client


def request(client: LineProcess, *numbers: int) -> None:
    assert client.ask(" ".join(map(str, numbers))) == str(len(numbers))


def ended(client: LineProcess) -> NodeReport:
    return NodeReport.from_json(json.loads(client.ask("end")))


def resident(client: LineProcess) -> set[int]:
    return {*json.loads(client.ask("resident"))}


def kill_amid(
    host: ThreeFs, client: LineProcess, asked: int, io_engine: str, *, reads: bool
) -> None:
    """kill -9 in the middle of a request, of which some I/Os are done and others hang."""
    before = host.counters()["calls"]
    name, only = ("read", 1) if reads else ("write", 2)
    host.set(only=only, **HANGS[io_engine])
    client.send(str(asked))
    host.wait_until(lambda counters: counters["held"] or counters["calls"][name] > before[name])
    client.kill()
    host.reset()  # the kernel keeps a killed process until its FUSE requests are answered
    with pytest.raises(StorageError, match="ended with status -9"):
        client.answer()


def registered(host: ThreeFs) -> list[str]:
    return [path.name for path in host.iovs.iterdir() if "submit-ios" not in path.name]


def check_nothing_is_left(host: ThreeFs, pid: int) -> None:
    host.wait_until(lambda counters: counters["dropped"] == counters["registered"])
    assert registered(host) == []
    assert shared_memory(pid) == []


@pytest.mark.parametrize(
    ("io_engine", "kills"),
    [
        ("usrbio", 4),
        ("fuse", 4),
        pytest.param("usrbio", MANY, marks=pytest.mark.slow),
        pytest.param("fuse", MANY, marks=pytest.mark.slow),
    ],
)
def test_a_client_killed_amid_its_io_leaves_its_pages_and_nothing_else(
    tmp_path: Path, io_engine: str, kills: int
) -> None:
    """Its successor goes on with its pages, and the other host reads them all along."""
    clients = Clients(tmp_path, io_engine)
    whole, torn = CHAINS[1 : kills + 1], range(kills + 1, 2 * kills + 1)
    with hosts(tmp_path) as (here, there), clients.on(there) as survivor:
        request(survivor, 0)
        for number in range(1, kills + 1):
            stored = range(1, number)
            reads = number % 2 == 0
            with clients.on(here) as victim:
                assert resident(victim) >= {
                    block for chain in whole[: number - 1] for block in chain
                }
                request(victim, *stored, number)
                assert bool(registered(here)) == (io_engine == "usrbio")
                asked = 0 if reads else torn[number - 1]
                kill_amid(here, victim, asked, io_engine, reads=reads)
            check_nothing_is_left(here, victim._child.pid)
            request(survivor, *stored, number)
        report = replayed(clients, here, range(1, kills + 1))
        assert report.prefix_hits == kills * PAGES
        assert (report.pages_written, report.remote_hits, report.wrong_pages) == (0, 0, 0)
        assert replayed(clients, here, torn).wrong_pages == 0
        report = ended(survivor)
    assert report.pages_written == PAGES
    assert report.prefix_hits == report.remote_hits == PAGES * sum(range(1, kills + 1))
    assert report.wrong_pages == report.set_failures == 0


def replayed(clients: Clients, host: ThreeFs, numbers: Sequence[int]) -> NodeReport:
    """What a new process finds of these requests."""
    with clients.on(host) as client:
        request(client, *numbers)
        return ended(client)
