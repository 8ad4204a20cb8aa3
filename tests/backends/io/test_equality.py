"""The engines give the same results, checksums and bytes for any batch."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hicache_backends.io.engine import Engine
from hicache_backends.io.native import NativeEngine
from hicache_backends.io.posix import PosixEngine
from tests.backends.io.batches import (
    checksums,
    contents,
    digests,
    memory,
    read_batch,
    soon,
    write_batch,
)

ENGINES: list[Engine] = [NativeEngine(), NativeEngine(keep_gil_bytes=0), PosixEngine()]
SMALL_TRANSFERS: list[Engine] = [
    NativeEngine(max_transfer_bytes=4096),
    NativeEngine(max_transfer_bytes=9000, keep_gil_bytes=0),
    PosixEngine(max_transfer_bytes=4096),
]
FILE_BYTES = 60_000


@dataclass
class Files:
    readable: list[int]
    unreadable: list[int]
    data: bytes


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Files]:
    directory = tmp_path_factory.mktemp("equality")
    data = np.random.default_rng(5).integers(0, 256, FILE_BYTES, np.uint8).tobytes()
    for name in ("a", "b"):
        (directory / name).write_bytes(data)
    readable = [os.open(directory / name, os.O_RDONLY) for name in ("a", "b")]
    write_only = os.open(directory / "a", os.O_WRONLY)
    yield Files(readable, [-1, write_only], data)
    for fd in (*readable, write_only):
        os.close(fd)


@st.composite
def places(draw: st.DrawFn) -> tuple[list[int], list[tuple[int, int]]]:
    """Piece sizes, and (file, offset) of each page: neighbours, holes, past the end."""
    sizes = draw(st.lists(st.integers(1, 3000), min_size=1, max_size=4))
    page_bytes = sum(sizes)
    slots = st.integers(0, FILE_BYTES // page_bytes + 2).map(lambda slot: slot * page_bytes)
    offsets = st.one_of(slots, st.integers(0, FILE_BYTES + 5000))
    where = draw(st.lists(st.tuples(st.integers(0, 3), offsets), min_size=0, max_size=14))
    neighbours = draw(st.integers(0, 6))
    where += [(0, i * page_bytes) for i in range(neighbours)]
    return sizes, draw(st.permutations(where))


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    batch=places(), threads=st.integers(1, 4), engines=st.sampled_from([ENGINES, SMALL_TRANSFERS])
)
def test_any_batch_is_read_alike(
    files: Files,
    batch: tuple[list[int], list[tuple[int, int]]],
    threads: int,
    engines: list[Engine],
) -> None:
    sizes, where = batch
    fds = [(*files.readable, *files.unreadable)[f] for f, _ in where]
    offsets = [offset for _, offset in where]
    expected = [files.data[o : o + sum(sizes)] for o in offsets]
    for engine in engines:
        block, pages = memory(len(where), sizes)
        got = engine.read(read_batch(fds, offsets, pages), soon(), threads=threads)
        read = contents(block, pages)
        sums = checksums(read)
        for i, fd in enumerate(fds):
            if fd in files.unreadable:
                assert got.results[i] == -errno.EBADF
                assert read[i] == b"\xa5" * sum(sizes)
                continue
            assert got.results[i] == len(expected[i])
            assert read[i] == expected[i].ljust(sum(sizes), b"\xa5")
            if len(expected[i]) == sum(sizes):
                assert got.checksums[i] == sums[i]


@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=4),
    slots=st.lists(st.integers(0, 20), min_size=0, max_size=12, unique=True),
    threads=st.integers(1, 4),
    engines=st.sampled_from([ENGINES, SMALL_TRANSFERS]),
    seed=st.integers(0, 1000),
)
def test_any_batch_is_written_alike(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    slots: list[int],
    threads: int,
    engines: list[Engine],
    seed: int,
) -> None:
    directory = tmp_path_factory.mktemp("written")
    rng = np.random.default_rng(seed)
    pattern = rng.integers(0, 256, 40_000, np.uint8)
    used = (rng.integers(0, 2, len(slots)) > 0).tolist()
    outcomes = []
    for number, engine in enumerate(engines):
        block, pages = memory(len(slots), sizes)
        block[:] = np.resize(pattern, block.size)
        data = _file(directory / f"{number}.data")
        index = _file(directory / f"{number}.index")
        offsets = [slot * pages.page_bytes for slot in slots]
        batch = write_batch(data, offsets, pages, index_fd=index, slots=slots, was_used=used)
        got = engine.write(batch, soon(), threads=threads)
        os.close(data)
        os.close(index)
        assert got.results.tolist() == [sum(sizes)] * len(slots)
        assert got.checksums.tolist() == checksums(contents(block, pages))
        outcomes.append(
            (
                (directory / f"{number}.data").read_bytes(),
                (directory / f"{number}.index").read_bytes(),
                bytes(batch.records),
            )
        )
    assert outcomes[0] == outcomes[1] == outcomes[2]


def _file(path: Path) -> int:
    return os.open(path, os.O_RDWR | os.O_CREAT)


@settings(max_examples=40, deadline=None)
@given(
    count=st.integers(0, 5),
    cuts=st.lists(st.integers(1, 4000), min_size=1, max_size=5),
    others=st.integers(1, 7),
)
def test_any_pages_are_summed_and_copied_alike(count: int, cuts: list[int], others: int) -> None:
    total = sum(cuts)
    even = [total // others] * (others - 1) if total >= others else []
    target_sizes = [*even, total - sum(even)]
    for engine in ENGINES:
        block, source = memory(count, cuts)
        block[:] = np.arange(block.size) % 251
        target_block, target = memory(count, target_sizes)
        engine.copy(source, target)
        copied = contents(target_block, target)
        assert copied == contents(block, source)
        assert engine.checksum(target, digests(count)).tolist() == checksums(copied)
        target_block[:] = 0
        sums = engine.copy_and_sum(source, target, digests(count))
        assert contents(target_block, target) == copied
        assert sums.tolist() == checksums(copied)


def test_a_batch_large_enough_for_threads_is_summed_and_copied_alike(engine: Engine) -> None:
    count, size = 40, (1 << 18) + 100
    block, source = memory(count, [size - 1000, 1000])
    block[:] = np.random.default_rng(7).integers(0, 256, block.size, np.uint8)
    target_block, target = memory(count, [5, size - 5])
    sums = engine.copy_and_sum(source, target, digests(count))
    copied = contents(target_block, target)
    assert copied == contents(block, source)
    assert sums.tolist() == checksums(copied)
    assert engine.checksum(source, digests(count)).tolist() == checksums(copied)


@pytest.mark.parametrize("size", [1, 2, 3, (1 << 20) + 1, 40 << 10])
def test_a_page_of_odd_size_has_a_shorter_first_half(engine: Engine, size: int) -> None:
    block, pages = memory(3, [size])
    block[:] = np.random.default_rng(size).integers(0, 256, block.size, np.uint8)
    assert engine.checksum(pages, digests(3)).tolist() == checksums(contents(block, pages))
