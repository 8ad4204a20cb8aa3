"""A wrong call of the extension raises, whatever it is; it never crashes."""

from __future__ import annotations

import dataclasses
import struct
from typing import Any

import numpy as np
import pytest

from hicache_backends import _native
from hicache_backends.io.engine import Engine, RecordRuns
from tests.backends.io.batches import memory, read_batch, soon, write_batch

N, PIECES = 3, 2
_, PAGES = memory(N, [256, 256])
IOV = np.stack([PAGES.addresses, PAGES.sizes], axis=-1).tobytes()
FDS, OFFSETS, DIGESTS = struct.pack("3i", -1, -1, -1), bytes(8 * N), bytes(16 * N)
READ: list[Any] = [FDS, OFFSETS, IOV, PIECES, DIGESTS, 0, 1, 1 << 20, 0]
WRITE: list[Any] = [*READ[:-1], FDS, OFFSETS, bytes(N), bytearray(64 * N), None]
NULL = struct.pack("2Q", 0, 256) * (N * PIECES)
EMPTY = struct.pack("2Q", 4096, 0) * (N * PIECES)
HUGE = struct.pack("2Q", 4096, 1 << 63) * (N * PIECES)
NEGATIVE = struct.pack("3q", 0, -1, 0)
FAR = struct.pack("3q", 0, 2**63 - 1, 0)

WRONG = [
    (0, b"abc"),
    (0, bytes(8)),
    (0, bytearray(12)),
    (0, None),
    (1, OFFSETS[:-1]),
    (1, OFFSETS + bytes(8)),
    (1, NEGATIVE),
    (1, FAR),
    (2, IOV[:-16]),
    (2, b""),
    (2, NULL),
    (2, EMPTY),
    (2, HUGE),
    (3, 0),
    (3, -1),
    (3, 3),
    (3, 2**62),
    (3, 2**70),
    (4, DIGESTS[:-1]),
    (5, 2**70),
    (5, "soon"),
    (6, 0),
    (6, -1),
    (7, 0),
    (7, 4095),
    (7, -5),
]
WRONG_RECORDS = [
    (8, FDS[:-1]),
    (9, OFFSETS[:-1]),
    (10, bytes(N + 1)),
    (11, bytearray(64 * N - 1)),
    (11, bytes(64 * N)),
    (12, (b"", b"")),
    (12, [b"", b"", b""]),
    (12, (b"abc", b"", b"")),
    (12, (bytes(4), bytes(8), bytes(8))),
    (12, (bytes(4), bytes(8), bytes(16))),
    (12, (bytes(4), struct.pack("q", -1), struct.pack("2Q", 4096, 64))),
    (12, (bytes(4), bytes(8), struct.pack("2Q", 4096, 1 << 63))),
    (12, (bytearray(4), bytes(8), struct.pack("2Q", 4096, 64))),
]


def call(function: Any, *args: Any) -> None:
    with pytest.raises((TypeError, ValueError, OverflowError)):
        function(*args)


def test_the_right_calls_are_right() -> None:
    results, _ = _native.read_many(*READ)
    assert len(results) == 8 * N
    results, _ = _native.write_many(*WRITE)
    assert len(results) == 8 * N


@pytest.mark.parametrize(("position", "value"), WRONG)
def test_a_wrong_batch_raises(position: int, value: object) -> None:
    call(_native.read_many, *READ[:position], value, *READ[position + 1 :])
    call(_native.write_many, *WRITE[:position], value, *WRITE[position + 1 :])


@pytest.mark.parametrize(("position", "value"), WRONG_RECORDS)
def test_wrong_records_raise(position: int, value: object) -> None:
    call(_native.write_many, *WRITE[:position], value, *WRITE[position + 1 :])


def test_a_record_before_its_file_raises() -> None:
    fds = struct.pack("3i", -1, 0, -1)
    call(_native.write_many, *WRITE[:8], fds, NEGATIVE, *WRITE[10:])


def test_too_few_or_too_many_arguments_raise() -> None:
    for function in (_native.read_many, _native.write_many, _native.exchange, _native.copy_many):
        call(function)
        call(function, *range(20))


def test_wrong_small_calls_raise() -> None:
    call(_native.checksum_many, IOV, PIECES, DIGESTS[:-1], 1)
    call(_native.checksum_many, IOV[:-1], PIECES, DIGESTS, 1)
    call(_native.checksum_many, IOV, -2, DIGESTS, 1)
    call(_native.checksum_many, IOV, PIECES, DIGESTS, 0)
    call(_native.copy_many, N, IOV, PIECES, IOV, 3, b"", 1)
    call(_native.copy_many, -1, IOV, PIECES, IOV, PIECES, b"", 1)
    call(_native.copy_many, 2**62, IOV, PIECES, IOV, PIECES, b"", 1)
    call(_native.copy_many, N, IOV, PIECES, IOV, PIECES, DIGESTS[:-1], 1)
    call(_native.copy_many, N, IOV, PIECES, IOV, PIECES, DIGESTS, -1)
    other = memory(N, [511])[1].addresses.tobytes()
    call(_native.copy_many, N, IOV, PIECES, other, 1, b"", 1)
    call(_native.page_digests, b"", ["key"], 1024)
    call(_native.page_digests, b"f" * 65, ["key"], 1024)
    call(_native.page_digests, b"f", 5, 1024)
    call(_native.page_digests, b"f", ["key", 5], 1024)
    call(_native.page_digests, b"f", ["four"], 3)
    call(_native.crc32c, "text")
    call(_native.valid_records, 0, 1)
    call(_native.valid_records, 4096, -1)
    call(_native.exchange, 0, "text", 0)
    call(_native.try_exchange, 0, "text", 1)
    call(_native.try_exchange, 0, b"text", 0)
    call(_native.skip_replies, b"not to be written to", 0, 1)
    call(_native.skip_replies, bytearray(b"+OK"), 4, 1)
    call(_native.skip_replies, bytearray(b"+OK"), 0, -1)
    route = (b"p{t}0.12345678.", b"\0\1\0\0", b"", b"", b"", b"")
    call(_native.pages_request, route, [b"short"])
    call(_native.pages_request, route[:5], [bytes(16)])
    call(_native.pages_request, (route[0] * 10, *route[1:]), [bytes(16)])
    call(_native.read_pages, route, -1, b"", True, 0, 0)
    call(_native.read_pages, route, 2, b"", True, 0, 0)
    call(_native.read_pages, route[1:], 0, b"", True, 0, 0)


def test_pages_of_replies_that_are_not_there_are_not_read() -> None:
    route = (b"p{t}0.12345678.", b"\0\1\0\0", b"", b"", b"", b"")
    for raw in (b"$-1\r\n$-1", b"$-1\r\n$9\r\n12", b"$-1\r\n*1\r\n"):
        with pytest.raises(ConnectionError):
            _native.read_pages(route, 2, raw, True, 0, 0)


def test_pages_of_other_sizes_are_not_copied(engine: Engine) -> None:
    for other in (memory(N, [511])[1], memory(N + 1, [512])[1]):
        with pytest.raises(ValueError, match=r"[a-z]"):
            engine.copy(PAGES, other)
        with pytest.raises(ValueError, match=r"[a-z]"):
            engine.copy_and_sum(PAGES, other, DIGESTS)


OUTSIDE = [
    {"fds": [7]},
    {"offsets": [64]},
    {"offsets": [1]},
    {"sizes": [63]},
    {"sizes": [64 * N - 1]},
    {"fds": [], "offsets": [], "addresses": [], "sizes": []},
    {"fds": [8, 8], "offsets": [0, 0], "addresses": [4096, 4096], "sizes": [256, 256]},
    {"addresses": [0]},
    {"sizes": [0]},
    {"offsets": [-64]},
    {"sizes": [256, 256]},
    {"fds": [8, 8]},
    {"fds": [8, 8], "offsets": [0, 64], "addresses": [4096, 4096]},
]


@pytest.mark.parametrize("change", OUTSIDE, ids=str)
def test_a_record_that_does_not_lie_in_one_run_raises(
    engine: Engine, change: dict[str, list[int]]
) -> None:
    """Before the memory of any run is touched: there is none here."""
    batch = write_batch(-1, [0] * N, PAGES, index_fd=8)
    right = {"fds": [8], "offsets": [0], "addresses": [4096], "sizes": [64 * N]} | change
    runs = RecordRuns(
        np.array(right["fds"], np.int32),
        np.array(right["offsets"], np.int64),
        np.array(right["addresses"], np.uint64),
        np.array(right["sizes"], np.uint64),
    )
    with pytest.raises(ValueError, match=r"[a-z]"):
        engine.write(dataclasses.replace(batch, runs=runs), soon())


@pytest.mark.parametrize("field", ["fds", "offsets", "digests"])
def test_arrays_that_do_not_fit_together_raise(engine: Engine, field: str) -> None:
    batch = read_batch([-1] * N, [0] * N, PAGES)
    with pytest.raises(ValueError, match=r"[a-z]"):
        engine.read(dataclasses.replace(batch, **{field: getattr(batch, field)[:-1]}), soon())


@pytest.mark.parametrize("field", ["record_fds", "record_offsets", "was_used", "records"])
def test_records_that_do_not_fit_their_pages_raise(engine: Engine, field: str) -> None:
    batch = write_batch(-1, [0] * N, PAGES)
    with pytest.raises(ValueError, match=r"[a-z]"):
        engine.write(dataclasses.replace(batch, **{field: getattr(batch, field)[:-1]}), soon())


def test_a_negative_offset_and_no_threads_raise(engine: Engine) -> None:
    with pytest.raises(ValueError, match="offsets"):
        engine.read(read_batch([-1] * N, [0, -1, 0], PAGES), soon())
    with pytest.raises(ValueError, match="threads"):
        engine.read(read_batch([-1] * N, [0] * N, PAGES), soon(), threads=0)


def test_digests_that_do_not_fit_their_pages_raise(engine: Engine) -> None:
    with pytest.raises(ValueError, match="digests"):
        engine.checksum(PAGES, bytes(16 * N - 1))
    with pytest.raises(ValueError, match="digests"):
        engine.copy_and_sum(PAGES, PAGES, b"")
