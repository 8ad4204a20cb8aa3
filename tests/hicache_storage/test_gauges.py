"""Gauges add up over the stores of a process and over processes, whoever answers the scrape."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.multiprocess import MultiProcessCollector

from hicache_storage.gauges import Gauges

REPOSITORY = Path(__file__).parents[2]
NAMES = ("backend", "tenant", "tier")
LABELS = ("nvme", "t", "L3")
Figures = tuple[float, float, float]

RANK = """
import sys
import time
from prometheus_client import REGISTRY
from hicache_storage import gauges
gauges.REFRESH_S = 0.02
shown = gauges.Gauges.of(REGISTRY, ("backend", "tenant", "tier"))
figures = [{"pages": 3, "bytes": 30, "capacity_bytes": 100}, {"pages": 1, "bytes": 8}]
figures[1]["capacity_bytes"] = 100
calls = []


def stats(told):
    calls.append(told)
    return told if told.get("works", True) else 1 / 0


ends = [shown.add(("nvme", "t", "L3"), lambda f=f: stats(f), (b"medium",)) for f in figures]
print("open", flush=True)
for line in sys.stdin:
    if line == "stumble\\n":
        figures[0]["works"] = False
        calls.clear()
        while len(calls) < 4:
            time.sleep(0.01)
    if line == "grow\\n":
        figures[0].update(pages=10, works=True)
    if line == "close\\n":
        [end() for end in ends]
"""

POOLS = """
import sys
from hicache_storage.config import load_config
from hicache_storage.opening import open_page_store
from hicache_storage import gauges
gauges.REFRESH_S = 0.02
identity = {"model": "m", "revision": "1", "kv_dtype": "bf16", "layout": "page_first"}
nvme = {"path": sys.argv[1], "capacity": "64MiB", "free_floor": 0, "page_size": 1}
config = load_config({"nvme": nvme, "identity": identity | {"page_bytes": 4096}}, env={})
with (
    open_page_store(config, config.namespace(pool="kv")) as kv,
    open_page_store(config, config.namespace(pool="mamba")) as mamba,
):
    pages = [bytes([n]) * 4096 for n in range(3)]
    assert all(outcome.ok for outcome in kv.set(["a", "b", "c"], pages, parent=None))
    assert all(outcome.ok for outcome in mamba.set(["c"], pages[:1], parent=None))
    read = kv.get(["a", "d"], [bytearray(4096), bytearray(4096)])
    assert [outcome.ok for outcome in read] == [True, False]
    print("open", flush=True)
    sys.stdin.readline()
"""


def stats(pages: int, capacity: int) -> Callable[[], dict[str, int | float | str]]:
    return lambda: {"pages": pages, "bytes": 10 * pages, "capacity_bytes": capacity}


def figures(registry: CollectorRegistry, labels: tuple[str, ...] = LABELS) -> Figures:
    found = dict(zip(NAMES, labels, strict=True))
    pages, size, capacity = (
        registry.get_sample_value(f"hicache_{name}", found) or 0.0
        for name in ("stored_pages", "stored_bytes", "capacity_bytes")
    )
    return pages, size, capacity


def test_stores_with_equal_labels_add_up_and_a_mediums_capacity_counts_once() -> None:
    registry = CollectorRegistry()
    gauges = Gauges.of(registry, NAMES)
    ends = [
        gauges.add(LABELS, stats(3, 100), [b"a", b"b"]),
        gauges.add(LABELS, stats(4, 100), [b"b", b"a"]),
        gauges.add(LABELS, stats(5, 50), [b"c"]),
        gauges.add(LABELS, stats(1, 7)),
        gauges.add(LABELS, stats(1, 7)),
    ]
    gauges.add(("nvme", "other", "L3"), stats(1000, 1000), [b"a"])
    assert figures(registry) == (14, 140, 164)
    ends.pop(0)()
    assert figures(registry) == (11, 110, 164)
    for end in ends:
        end()
    assert figures(registry) == (0, 0, 0)
    assert figures(registry, ("nvme", "other", "L3")) == (1000, 10000, 1000)


def test_a_store_that_fails_to_tell_counts_as_before() -> None:
    registry = CollectorRegistry()
    gauges = Gauges.of(registry, NAMES)
    told: list[dict[str, int | float | str]] = [stats(3, 100)()]
    gauges.add(LABELS, lambda: told[0], [b"a"])
    gauges.add(LABELS, stats(4, 100), [b"a"])
    assert figures(registry) == (7, 70, 100)
    told.clear()
    assert figures(registry) == (7, 70, 100)


def test_a_registry_has_them_once() -> None:
    registry = CollectorRegistry()
    assert Gauges.of(registry, NAMES) is Gauges.of(registry, NAMES)


def test_another_process_that_answers_the_scrape_has_the_same(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]  # its own gap
    with rank(tmp_path) as first, rank(tmp_path):
        assert figures(registry) == (8, 76, 100)
        tell(first, "stumble")
        tell(first, "grow")
        eventually(lambda: figures(registry) == (15, 76, 100))
        tell(first, "close")
        eventually(lambda: figures(registry) == (4, 38, 100))


def test_the_pools_of_a_process_are_one_store_to_another_process(tmp_path: Path) -> None:
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(tmp_path))  # type: ignore[no-untyped-call]  # its own gap
    labels = dict(zip(NAMES, ("nvme", "default", "L3"), strict=True))
    with rank(tmp_path, POOLS, str(tmp_path / "l3")):
        eventually(lambda: figures(registry, tuple(labels.values())) == (4, 4 * 4096, 64 << 20))
        for name, count in (("stored", 4), ("hit", 1), ("bytes_written", 4 * 4096)):
            assert registry.get_sample_value(f"hicache_{name}_total", labels) == count
        missed = labels | {"reason": "never_written"}
        assert registry.get_sample_value("hicache_miss_total", missed) == 1
        calls = labels | {"op": "get"}
        assert registry.get_sample_value("hicache_call_seconds_count", calls) == 1


@contextmanager
def rank(metrics: Path, code: str = RANK, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    env = os.environ | {
        "PROMETHEUS_MULTIPROC_DIR": str(metrics),
        "PYTHONPATH": f"{REPOSITORY}:{REPOSITORY}/backends",
    }
    with subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=env,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        yield process


def tell(process: subprocess.Popen[str], order: str) -> None:
    assert process.stdin is not None
    process.stdin.write(f"{order}\n")
    process.stdin.flush()


def eventually(holds: Callable[[], bool], wait_s: float = 10) -> None:
    end = time.monotonic() + wait_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("missing", ["pages", "bytes", "capacity_bytes"])
def test_a_backend_that_does_not_tell_counts_as_nothing(missing: str) -> None:
    registry = CollectorRegistry()
    told = {"pages": 1, "bytes": 10, "capacity_bytes": 100}
    told.pop(missing)
    Gauges.of(registry, NAMES).add(LABELS, lambda: told)
    assert sum(figures(registry)) == sum(told.values())
