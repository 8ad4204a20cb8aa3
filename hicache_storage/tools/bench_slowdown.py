"""What batch gets cost the thread that spins beside them, against the same work elsewhere.

In turn, one window each: a thread of this process gets the batches, then another process gets
as many batches of the same size at the same pace from a store of its own. Meanwhile the spinner's
rounds are counted. What both windows share, such as memory bandwidth, cancels out.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median

from hicache_storage.tools.bench_arena import Arena, open_arena, settle
from hicache_storage.tools.bench_plan import BATCH_PAGES, BenchPlan, Figures, Say
from hicache_storage.tools.line_process import LineProcess, reply
from hicache_storage.tools.spinner import Spinner

WINDOWS = 7
SLACK = 1.5
"""A batch begins every `SLACK` times the time that one takes beside the spinner."""


@dataclass(frozen=True, slots=True)
class Pace:
    """Seconds from one batch's begin to the next one's, and of a whole window."""

    interval: float
    window: float


def measure_slowdown(plan: BenchPlan, directory: Path, say: Say) -> Figures:
    """The share of its progress that the spinner loses: median over the windows."""
    figures: Figures = {}
    for heat, mode in (("cold", "auto"), ("warm", "buffered")):
        say(f"the spinning thread's own progress, {heat} reads")
        small = replace(plan, pages=BATCH_PAGES)
        with (
            open_arena(small, directory / f"slow-{heat}", io_mode=mode) as arena,
            LineProcess.of_module(
                "the other process",
                __name__,
                str(directory / f"other-{heat}"),
                str(plan.page_bytes),
                mode,
                plan.io_engine,
            ) as other,
        ):
            arena.write()
            settle(arena.directory)
            other.answer()  # ready
            pace = Pace(_interval(arena), plan.window_seconds)
            lost = [_lost(arena, other, pace, here_first=n % 2 == 0) for n in range(WINDOWS)]
        figures[heat] = round(median(lost), 4)
        figures[f"{heat}_windows"] = [round(x, 4) for x in lost]
    return {"spinner_slowdown": figures}


def _lost(arena: Arena, other: LineProcess, pace: Pace, *, here_first: bool) -> float:
    """The share of its progress that the spinner lost in one pair of windows."""
    sides: list[Callable[[], object]] = [
        lambda: _here(arena, pace),
        lambda: other.ask(f"{pace.interval} {pace.window}"),
    ]
    rounds = {side: _progress(sides[side]) for side in ((0, 1) if here_first else (1, 0))}
    return 1 - rounds[0] / rounds[1]


def paced_batches(arena: Arena, pace: Pace) -> None:
    """Get the whole arena again and again for one window."""
    everything = range(arena.pages)
    start = time.monotonic()
    for n in range(max(1, int(pace.window / pace.interval))):
        time.sleep(max(0.0, start + n * pace.interval - time.monotonic()))
        arena.batch(everything)


def _interval(arena: Arena) -> float:
    with Spinner():
        return SLACK * median(arena.batch(range(arena.pages)) for _ in range(5))


def _progress(work: Callable[[], object]) -> int:
    """The spinner's rounds a second of the work."""
    with Spinner() as spinner:
        began, rounds = time.perf_counter(), spinner.progress
        work()
        return int((spinner.progress - rounds) / (time.perf_counter() - began))


def _here(arena: Arena, pace: Pace) -> None:
    worker = threading.Thread(target=paced_batches, args=(arena, pace))
    worker.start()
    worker.join()


def _serve(directory: str, page_bytes: str, io_mode: str, io_engine: str) -> None:
    """The other process: works for a window whenever it is told the pace."""
    with Arena(
        Path(directory), int(page_bytes), BATCH_PAGES, io_mode=io_mode, io_engine=io_engine
    ) as arena:
        arena.write()
        settle(arena.directory)
        arena.read()
        reply("ready")
        for line in sys.stdin:
            paced_batches(arena, Pace(*map(float, line.split())))
            reply("done")


if __name__ == "__main__":
    _serve(*sys.argv[1:])
