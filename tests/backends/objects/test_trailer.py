"""A page is taken for another one, or for whole, never; whatever happened to its object."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from hicache_backends.io.select import open_engine
from hicache_backends.objects.trailer import TRAILER, TRAILER_BYTES, fits, seal
from hicache_backends.pages import Pages

ENGINE = open_engine()
digests = st.binary(min_size=16, max_size=16)


def checksums(page: bytes, digest: bytes) -> NDArray[np.uint64]:
    return ENGINE.checksum(Pages.from_buffers([page], writable=False), digest)


def sealed(page: bytes, digest: bytes, parent: bytes) -> bytes:
    rows = np.zeros(1, TRAILER)
    seal(rows, [digest], [parent], len(page), checksums(page, digest))
    return rows.tobytes()


def taken(trailer: bytes, page: bytes, digest: bytes) -> bool:
    rows = np.frombuffer(trailer, TRAILER)
    return fits(rows, [digest], len(page), checksums(page, digest))[0]


@given(page=st.binary(min_size=1, max_size=300), digest=digests, parent=digests)
def test_a_sealed_page_fits_and_its_trailer_says_what_it_is(
    page: bytes, digest: bytes, parent: bytes
) -> None:
    trailer = sealed(page, digest, parent)
    assert len(trailer) == TRAILER_BYTES
    assert taken(trailer, page, digest)
    row = np.frombuffer(trailer, TRAILER)[0]
    assert (row["digest"].tobytes(), row["parent"].tobytes()) == (digest, parent)
    assert row["length"] == len(page)


@given(page=st.binary(min_size=1, max_size=300), digest=digests, data=st.data())
def test_no_flipped_bit_is_missed(page: bytes, digest: bytes, data: st.DataObject) -> None:
    stored = bytearray(page + sealed(page, digest, bytes(16)))
    checked = len(stored) - 4  # the last four bytes are spare
    bit = data.draw(st.integers(0, checked * 8 - 1))
    stored[bit // 8] ^= 1 << bit % 8
    assert not taken(bytes(stored[len(page) :]), bytes(stored[: len(page)]), digest)


@given(page=st.binary(min_size=1, max_size=300), digest=digests, other=digests)
def test_a_page_is_not_another_one(page: bytes, digest: bytes, other: bytes) -> None:
    assert taken(sealed(page, digest, bytes(16)), page, other) == (digest == other)


@given(
    page=st.binary(min_size=2, max_size=300),
    digest=digests,
    garbage=st.binary(min_size=64, max_size=64),
)
def test_garbage_is_no_trailer(page: bytes, digest: bytes, garbage: bytes) -> None:
    assert not taken(garbage, page, digest)
    assert not taken(bytes(TRAILER_BYTES), page, digest)


@given(page=st.binary(min_size=2, max_size=300), digest=digests)
def test_a_trailer_of_a_shorter_page_does_not_fit(page: bytes, digest: bytes) -> None:
    assert not taken(sealed(page[:-1], digest, bytes(16)), page, digest)


def test_each_row_of_a_batch_is_judged_by_itself() -> None:
    pages = [bytes([i]) * 64 for i in range(8)]
    names = [bytes([i]) * 16 for i in range(8)]
    rows = np.zeros(8, TRAILER)
    memory = Pages.from_buffers(pages, writable=False)
    sums = ENGINE.checksum(memory, b"".join(names))
    seal(rows, names, names, 64, sums)
    rows["checksum"][3] ^= 1
    assert fits(rows, names, 64, sums) == [i != 3 for i in range(8)]
