from __future__ import annotations

import hashlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends import identity, native_calls
from hicache_backends.deadline import Deadline
from hicache_backends.errors import InvalidKey
from hicache_backends.segment.format import RECORD, RECORD_CRC_OFFSET
from tests.backends.io.batches import memory, soon, write_batch


@pytest.fixture(params=[True, False], ids=["native", "python"])
def _either(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert native_calls.HAVE_NATIVE
    monkeypatch.setattr(native_calls, "HAVE_NATIVE", request.param)


@given(
    fingerprint=st.binary(min_size=1, max_size=64),
    keys=st.lists(st.text(min_size=1, max_size=300), max_size=8),
)
def test_digests_are_those_of_hashlib(fingerprint: bytes, keys: list[str]) -> None:
    expected = [
        hashlib.blake2b(key.encode("utf-8", "surrogatepass"), digest_size=16, key=fingerprint)
        for key in keys
    ]
    assert native_calls.page_digests(fingerprint, keys) == [h.digest() for h in expected]


@pytest.mark.parametrize("size", [1, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024])
def test_digests_at_the_edges_of_a_block(size: int) -> None:
    key = "k" * size
    expected = hashlib.blake2b(key.encode(), digest_size=16, key=b"f" * 32).digest()
    assert native_calls.page_digests(b"f" * 32, [key]) == [expected]


def test_a_lone_surrogate_is_a_key_too() -> None:
    keys = ["a", "x\ud800y"]
    assert native_calls.page_digests(b"f", keys) == identity.page_digests(b"f", keys)


@pytest.mark.usefixtures("_either")
@pytest.mark.parametrize("bad", ["", "k" * 1025, "é" * 513, b"bytes", None, 5])
def test_a_key_that_names_no_page_is_refused(bad: object) -> None:
    with pytest.raises(InvalidKey):
        native_calls.page_digests(b"f" * 32, ["fine", bad])  # type: ignore[list-item]  # the test


@pytest.mark.usefixtures("_either")
def test_records_are_valid_while_no_bit_of_them_has_flipped() -> None:
    _, pages = memory(4, [512])
    batch = write_batch(-1, [0] * 4, pages)
    records = np.frombuffer(batch.records, RECORD)
    for i, row in enumerate(np.frombuffer(batch.records, np.uint8).reshape(4, 64)):
        records["crc"][i] = native_calls.crc32c(row[:RECORD_CRC_OFFSET].tobytes())
    records["bytes"][2] = 0
    crc = native_calls.crc32c(bytes(batch.records)[128 : 128 + RECORD_CRC_OFFSET])
    records["crc"][2] = crc
    assert native_calls.valid_records(batch.records).tolist() == [True, True, False, True]
    assert not native_calls.valid_records(bytes(64 * 3)).any()
    for bit in range(8 * 60):
        flipped = bytearray(batch.records)
        flipped[bit // 8] ^= 1 << bit % 8
        assert native_calls.valid_records(flipped).tolist() == [False, True, False, True]


@pytest.mark.usefixtures("_either")
def test_records_come_whole() -> None:
    assert native_calls.valid_records(b"").tolist() == []
    with pytest.raises(ValueError, match="65 bytes"):
        native_calls.valid_records(bytes(65))


def test_both_ways_find_the_same_valid_records(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    table = np.frombuffer(rng.bytes(64 * 70_000), RECORD).copy()
    rows = table.view(np.uint8).reshape(-1, 64)
    for i in range(0, len(table), 500):
        table["crc"][i] = native_calls.crc32c(rows[i, :RECORD_CRC_OFFSET].tobytes())
    native = native_calls.valid_records(table)
    monkeypatch.setattr(native_calls, "HAVE_NATIVE", False)
    assert native.sum() == 140
    assert np.array_equal(native, native_calls.valid_records(table))


def test_without_the_extension_nothing_is_exchanged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_calls, "HAVE_NATIVE", False)
    assert native_calls.exchange(-1, b"PING\r\n", Deadline.after_ms(10)) is None
    assert native_calls.crc32c(b"123456789") == 0xE3069283
    assert soon().remaining_ms() > 0
