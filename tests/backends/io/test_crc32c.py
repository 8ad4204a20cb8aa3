from __future__ import annotations

from collections.abc import Callable

import crc32c as reference
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hicache_backends import _native, native_calls
from hicache_backends.io import crc32c as in_numpy

Crc = Callable[[bytes, int], int]

IMPLEMENTATIONS: dict[str, Crc] = {
    **{
        name: lambda data, seed, i=i: _native.crc32c(data, seed, i)  # type: ignore[misc]  # bound now
        for i, name in enumerate(_native.CRC32C_IMPLEMENTATIONS)
    },
    "numpy": in_numpy.crc32c,
    "native_calls": native_calls.crc32c,
}

every = pytest.mark.parametrize("crc", IMPLEMENTATIONS.values(), ids=IMPLEMENTATIONS.keys())

VECTORS = [
    (b"", 0),
    (b"123456789", 0xE3069283),
    # RFC 3720, B.4
    (bytes(32), 0x8A9136AA),
    (b"\xff" * 32, 0x62A8AB43),
    (bytes(range(32)), 0x46DD794E),
    (bytes(reversed(range(32))), 0x113FDB5C),
    (
        bytes.fromhex(
            "01c00000000000000000000000000000140000000000040000000014"
            "000000182800000000000000" + "0200000000000000"
        ),
        0xD9963A56,
    ),
]


@every
@pytest.mark.parametrize(("data", "expected"), VECTORS)
def test_known_answers(crc: Crc, data: bytes, expected: int) -> None:
    assert crc(data, 0) == expected


@every
@settings(max_examples=60, deadline=None)
@given(
    size=st.one_of(st.integers(0, 1100), st.integers(0, 70_000), st.sampled_from([1 << 20])),
    shift=st.integers(0, 15),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_implementation_agrees_for_all_lengths_and_alignments(
    crc: Crc, size: int, shift: int, seed: int
) -> None:
    data = np.random.default_rng(size).integers(0, 256, size + shift, np.uint8).tobytes()[shift:]
    assert crc(data, seed) == reference.crc32c(data, seed)


@every
@pytest.mark.parametrize("size", [1, 100, 5000, 200_000])
def test_a_message_may_be_cut_anywhere(crc: Crc, size: int) -> None:
    data = np.random.default_rng(7).integers(0, 256, size, np.uint8).tobytes()
    whole = crc(data, 0)
    for cut in (0, 1, size // 3, size - 1, size):
        assert crc(data[cut:], crc(data[:cut], 0)) == whole


def test_the_table_is_always_there() -> None:
    assert _native.CRC32C_IMPLEMENTATIONS[-1] == "table"
    with pytest.raises(ValueError, match="no implementation"):
        _native.crc32c(b"", 0, len(_native.CRC32C_IMPLEMENTATIONS))
    with pytest.raises(ValueError, match="no implementation"):
        _native.crc32c(b"", 0, -1)
