"""The set of digest prefixes says of many pages at once what the digests themselves would."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends.native_calls import HAVE_NATIVE
from hicache_backends.segment.known import Known

# few distinct prefixes, most of which share the low bits that choose a cell
_digests = st.builds(
    lambda low, high, rest: bytes([low, 0, high, 0, 0, 0, 0, 9]) + bytes([rest]) * 8,
    st.integers(0, 3),
    st.integers(0, 7),
    st.integers(0, 1),
)


@given(st.lists(st.tuples(st.booleans(), _digests), max_size=200))
def test_it_follows_what_is_added_and_taken(steps: list[tuple[bool, bytes]]) -> None:
    held: dict[bytes, int] = {}
    known = Known(held)
    seen = {digest for _, digest in steps}
    for add, digest in steps:
        if add and digest not in held:
            held[digest] = 0
            known.add(digest)
        elif not add and digest in held:
            del held[digest]
            known.remove(digest)
        prefixes = {h[:8] for h in held}
        asked = sorted(seen)
        expected = [d[:8] in prefixes if HAVE_NATIVE else d in held for d in asked]
        assert known.find(asked) == expected


def test_it_grows_with_the_pages_and_stays_exact() -> None:
    chance = random.Random(5)  # noqa: S311 - not cryptography
    held: dict[bytes, int] = {}
    known = Known(held)
    for _ in range(20_000):
        digest = chance.randbytes(16)
        held[digest] = 0
        known.add(digest)
        if chance.random() < 0.3:
            gone = next(iter(held))
            del held[gone]
            known.remove(gone)
    strangers = [chance.randbytes(16) for _ in range(20_000)]
    assert all(known.find(list(held)))
    assert not any(known.find(strangers))


def test_what_is_no_digest_is_not_there() -> None:
    known = Known({bytes(16): 1})
    assert known.find([bytes(16), b"", b"short", bytes(17)]) == [True, False, False, False]


@pytest.mark.skipif(not HAVE_NATIVE, reason="the C extension is not built")
def test_a_table_that_is_none_is_refused() -> None:
    from hicache_backends import _native

    for cells in (0, 3):
        with pytest.raises(ValueError, match="power of two"):
            _native.prefixes_find(bytearray(8 * cells), [bytes(16)])
    with pytest.raises(ValueError, match="digests"):
        _native.prefixes_add(bytearray(8 * 4), bytes(16 * 4))
    with pytest.raises(ValueError, match="digests"):
        _native.prefixes_add(bytearray(8 * 4), bytes(15))
