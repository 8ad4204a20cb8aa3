"""Records that go out as whole ranges of their index files, by way of an image in memory."""

from __future__ import annotations

import dataclasses
import errno
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_backends.deadline import Deadline
from hicache_backends.io.engine import Engine
from hicache_backends.native_calls import valid_records
from tests.backends.io.batches import memory, old_index, soon, with_runs, write_batch
from tests.backends.io.shim import Child, compile_shim, run_child
from tests.backends.io.test_equality import ENGINES, SMALL_TRANSFERS

PAGE = 4096
SLOTS = 64


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_shim(tmp_path_factory.mktemp("shim"))


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    slots=st.lists(st.integers(0, SLOTS - 1), max_size=20, unique=True),
    used=st.sets(st.integers(0, SLOTS - 1)),
    failing=st.sets(st.integers(0, 19)),
    without_record=st.sets(st.integers(0, 19), max_size=3),
    records_a_run=st.sampled_from([1, 5, 16, SLOTS]),
    engine=st.sampled_from([*ENGINES, *SMALL_TRANSFERS]),
)
def test_the_file_is_the_image_and_what_records_alone_would_leave(
    tmp_path_factory: pytest.TempPathFactory,
    slots: list[int],
    used: set[int],
    failing: set[int],
    without_record: set[int],
    records_a_run: int,
    engine: Engine,
) -> None:
    directory = tmp_path_factory.mktemp("runs")
    image = old_index(SLOTS, sorted(used))
    _, pages = memory(len(slots), [1000, PAGE - 1000])
    outcomes = []
    for name in ("alone", "runs"):
        (directory / f"{name}.index").write_bytes(image.tobytes())
        data = os.open(directory / f"{name}.data", os.O_RDWR | os.O_CREAT)
        index = os.open(directory / f"{name}.index", os.O_RDWR)
        refused = os.open(directory / f"{name}.data", os.O_RDONLY)
        batch = write_batch(
            data,
            [slot * PAGE for slot in slots],
            pages,
            index_fd=index,
            slots=slots,
            was_used=[slot in used for slot in slots],
        )
        for i in range(len(slots)):
            batch.fds[i] = refused if i in failing else data
            batch.record_fds[i] = -1 if i in without_record else index
        if name == "runs":
            batch = with_runs(batch, image, 64 * records_a_run)
        got = engine.write(batch, soon())
        for fd in (data, index, refused):
            os.close(fd)
        outcomes.append(
            (
                got.results.tolist(),
                bytes(batch.records),
                (directory / f"{name}.data").read_bytes(),
                (directory / f"{name}.index").read_bytes(),
            )
        )
    assert outcomes[0] == outcomes[1]
    assert outcomes[1][3] == image.tobytes()


def test_nothing_but_the_image_is_touched_after_the_deadline(
    engine: Engine, tmp_path: Path
) -> None:
    image = old_index(4, [0, 1, 3])
    (tmp_path / "index").write_bytes(image.tobytes())
    index = os.open(tmp_path / "index", os.O_RDWR)
    data = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT)
    _, pages = memory(2, [PAGE])
    batch = write_batch(data, [0, PAGE], pages, index_fd=index, was_used=[True, False])
    got = engine.write(with_runs(batch, image, 256), Deadline(0))
    assert got.results.tolist() == [-errno.ETIMEDOUT] * 2
    assert (tmp_path / "index").read_bytes() == old_index(4, [0, 1, 3]).tobytes()
    assert (tmp_path / "data").stat().st_size == 0
    assert valid_records(image.tobytes()).tolist() == [False, True, False, True]


WRITE = """
import os, sys
from hicache_backends.io.select import open_engine
from tests.backends.io.batches import memory, old_index, soon, with_runs, write_batch
directory, name, *slots = sys.argv[1:]
slots = [int(slot) for slot in slots]
data = os.open(directory + "/data", os.O_RDWR | os.O_CREAT)
index = os.open(directory + "/index", os.O_RDWR | os.O_CREAT)
image = old_index(64, [1, 2, 20, 40])
os.write(index, image)
_, pages = memory(len(slots), [4096], fill=0x5A)
batch = write_batch(
    data, [s * 4096 for s in slots], pages, index_fd=index, slots=slots,
    was_used=[s in (1, 2, 20, 40) for s in slots],
)
got = open_engine(name).write(with_runs(batch, image, 1024), soon())
print(got.results.tolist(), data, index)
open(directory + "/image", "wb").write(image)
"""
OLD = [1, 2, 20, 40]
both = pytest.mark.parametrize("name", ["native", "posix"])


def write_in_child(
    shim: Path, directory: Path, name: str, slots: list[int], rules: str = ""
) -> tuple[Child, str, list[int], list[int]]:
    """The child, its results, and the slots with a valid record in the image and in the file."""
    child = run_child(shim, WRITE, str(directory), name, *map(str, slots), rules=rules)
    held, stored = (
        np.flatnonzero(valid_records((directory / file).read_bytes())).tolist()
        for file in ("image", "index")
    )
    return child, child.output.rsplit(" ", 2)[0], held, stored


@both
def test_a_run_is_written_whole_once_a_phase(shim: Path, tmp_path: Path, name: str) -> None:
    slots = [40, 1, 3, 0, 5, 63, 20]
    child, results, held, stored = write_in_child(shim, tmp_path, name, slots)
    assert results == str([PAGE] * 7)
    index = int(child.output.split()[-1])
    runs = [(offset, size) for call, fd, offset, size in child.calls if fd == index]
    voided, put = runs[:3], runs[3:]
    assert voided == [(at, 1024) for at in (0, 1024, 2048)]
    assert put == [(at, 1024) for at in (0, 1024, 2048, 3072)]
    assert held == stored == sorted({*OLD, *slots})


@both
def test_pages_whose_old_records_cannot_be_voided_fail(
    shim: Path, tmp_path: Path, name: str
) -> None:
    slots = [2, 3, 20]
    _, results, held, stored = write_in_child(shim, tmp_path, name, slots, "pwrite:1:fail:28")
    assert results == str([-errno.ENOSPC, PAGE, PAGE])
    assert held == stored == [1, 3, 20, 40]  # the later write of the run voids the record of 2
    assert (tmp_path / "data").read_bytes()[2 * PAGE : 3 * PAGE] == bytes(PAGE)


@both
def test_pages_whose_new_records_are_not_written_fail(
    shim: Path, tmp_path: Path, name: str
) -> None:
    slots = [2, 3, 20]
    _, results, held, _ = write_in_child(shim, tmp_path, name, slots, "pwrite:3:fail:28")
    assert results == str([-errno.ENOSPC, -errno.ENOSPC, PAGE])
    assert held == [1, 20, 40]


@both
def test_a_run_cut_short_fails_the_pages_behind_the_cut(
    shim: Path, tmp_path: Path, name: str
) -> None:
    rules = "pwrite:3:short:200,pwrite:4:fail:5"
    slots = [2, 3, 20]
    _, results, held, _ = write_in_child(shim, tmp_path, name, slots, rules)
    assert results == str([PAGE, -errno.EIO, PAGE])
    assert held == [1, 2, 20, 40]


def test_engines_that_cannot_pad_at_no_cost_write_the_page_alone(
    engine: Engine, tmp_path: Path
) -> None:
    data = os.open(tmp_path / "data", os.O_RDWR | os.O_CREAT)
    os.pwrite(data, b"\x11" * 3 * PAGE, 0)
    _, pages = memory(2, [1000])
    batch = dataclasses.replace(write_batch(data, [0, PAGE], pages), padded_bytes=PAGE)
    assert engine.write(batch, soon()).results.tolist() == [1000, 1000]
    os.close(data)
    assert (tmp_path / "data").read_bytes() == 2 * (
        b"\xa5" * 1000 + b"\x11" * 3096
    ) + b"\x11" * PAGE
