"""What the engine costs: over the bare ring, and beside a thread that spins in Python."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hicache_backends.usrbio.engine import UsrbioEngine
from tests.backends.io.batches import memory, read_batch, soon, write_batch
from tests.backends.usrbio.bench import DELIVERED, STAGED, in_turns, spinning, ways_to_move
from tests.backends.usrbio.conftest import PAGE

Opener = Callable[..., UsrbioEngine]


def best_ms(work: Callable[[], object], times: int = 9) -> float:
    """The best of several: other load only ever adds."""
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        work()
        taken.append((time.perf_counter() - start) * 1e3)
    return min(taken)


def test_a_batch_of_128_pages_costs_a_few_hand_offs_of_the_gil(
    open_engine: Opener, fd: int
) -> None:
    engine = open_engine()
    _, pages = memory(128, [PAGE])
    offsets = [i % 64 * PAGE for i in range(128)]
    reads = read_batch([fd] * 128, offsets, pages)
    writes = write_batch(fd, offsets, pages)

    def read() -> None:
        assert engine.read(reads, soon()).results.tolist() == [PAGE] * 128

    def write() -> None:
        assert engine.write(writes, soon()).results.tolist() == [PAGE] * 128

    alone = [best_ms(read), best_ms(write)]
    with spinning():
        beside = [best_ms(read), best_ms(write)]
    assert beside[0] < alone[0] + 15
    assert beside[1] < alone[1] + 15


def test_the_engine_is_as_fast_as_a_bare_loop_that_does_the_same_work(tmp_path: Path) -> None:
    """Copies and checksums are no overhead; a loop without them could not tell a wrong page."""
    ratios = []
    for attempt in range(8):  # other load weighs on one side of a run or the other
        directory = tmp_path / str(attempt)
        directory.mkdir()
        with ways_to_move(directory, pages=32, page_bytes=1 << 20) as ways:
            ms = in_turns({name: ways[name] for name in (STAGED, DELIVERED)}, 25)
        ratios.append(ms[STAGED] / ms[DELIVERED])
        if ratios[-1] < 1.15:
            return
    pytest.fail(f"times what the bare loop takes: {', '.join(f'{r:.2f}' for r in ratios)}")
