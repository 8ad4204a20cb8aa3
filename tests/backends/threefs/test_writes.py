"""What goes over the wire: whole chunks, and the records of a batch as one write an index file."""

from __future__ import annotations

from typing import Any

import pytest

from hicache_backends.identity import Namespace, page_digests
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
from hicache_backends.threefs.backend import ThreeFsStorage
from tests.backends.threefs.medium import CHUNK, ThreeFsMedium
from tests.threefs.stand_in import ThreeFs

RINGS: dict[str, Any] = {"io_engine": "usrbio", "ring_client": "own"}


def namespace(page_bytes: int) -> Namespace:
    return Namespace(
        model="writes",
        revision="0",
        kv_dtype="bfloat16",
        layout="page_first",
        page_tokens=64,
        page_bytes=page_bytes,
    )


def digests(of: Namespace, *names: object) -> list[bytes]:
    return page_digests(of.fingerprint, [str(name) for name in names])


def written(fs: ThreeFs) -> tuple[int, int]:
    """Writes by ring, and their bytes."""
    counters = fs.counters()
    return counters["writes"], counters["written_bytes"]


def scattered(storage: ThreeFsStorage, pages: list[bytes], page_bytes: int) -> int:
    """Take every third page away, so that the free slots are far apart; how many."""
    gone = pages[::3]
    assert all(storage.remove(gone))
    return len(gone)


def test_records_in_scattered_slots_go_out_as_one_write_an_index_file(fs: ThreeFs) -> None:
    medium = ThreeFsMedium(fs, **RINGS)
    storage = medium.open(NAMESPACE, segment_bytes=64 * 8256)
    pages = digests_of(*range(128))
    assert all(put(storage, pages))
    segments = int(storage.stats()["segments"])
    assert segments == 2
    count = scattered(storage, pages, 8192)
    new = digests_of(*(f"new {i}" for i in range(count)))
    before, _ = written(fs)
    assert all(put(storage, new))
    after, _ = written(fs)
    records = after - before - count
    assert storage.stats()["segments"] == segments, "the slots were not used again"
    assert records <= 2 * segments, "at most one to wipe and one to write"
    assert get(storage, new) == [True] * count
    storage.close()


def test_evicted_slots_are_wiped_and_written_with_two_writes_an_index_file(fs: ThreeFs) -> None:
    medium = ThreeFsMedium(fs, **RINGS)
    storage = medium.open(NAMESPACE, capacity_pages=64, segment_bytes=64 * 8256)
    for turn in range(4):
        assert all(put(storage, digests_of(*(f"{turn} {i}" for i in range(32)))))
    evicted = storage.stats()["evicted"]
    before, _ = written(fs)
    assert all(put(storage, digests_of(*(f"last {i}" for i in range(32)))))
    after, _ = written(fs)
    assert storage.stats()["evicted"] == int(evicted) + 32
    assert after - before <= 32 + 2
    storage.close()


@pytest.mark.parametrize("page_bytes", [60 << 10, 64 << 10, 120 << 10])
def test_pages_that_fill_their_chunks_are_written_as_whole_chunks(
    fs: ThreeFs, page_bytes: int
) -> None:
    of = namespace(page_bytes)
    medium = ThreeFsMedium(fs, **RINGS)
    storage = medium.open(of, segment_bytes=8 << 20)
    assert storage.geometry.is_chunked
    slot = storage.geometry.slot_bytes
    assert slot % CHUNK == 0
    pages = digests(of, *range(24))
    assert all(put(storage, pages[:1], page_bytes=page_bytes))
    writes, size = written(fs)
    assert all(put(storage, pages[1:], page_bytes=page_bytes))
    then_writes, then_size = written(fs)
    assert then_size - size - 23 * slot in (4096, 8192), "chunks in part, or the index more often"
    assert then_writes - writes <= 23 + 2
    assert get(storage, pages, page_bytes=page_bytes) == [True] * 24
    for page in medium.pages(of).values():
        assert page.at % CHUNK == 0
        padding = page.data.read_bytes()[page.at + page_bytes : page.at + slot]
        assert padding == bytes(slot - page_bytes)
    assert storage.close()
    again = medium.open(of, segment_bytes=8 << 20)
    assert get(again, pages, page_bytes=page_bytes) == [True] * 24
    again.close()


def test_a_page_larger_than_a_block_moves_in_whole_chunks(fs: ThreeFs) -> None:
    page_bytes = 5 << 20
    of = namespace(page_bytes)
    medium = ThreeFsMedium(fs, **RINGS, staging_bytes=32 << 20, rings=1)
    storage = medium.open(of, segment_bytes=32 << 20)
    pages = digests(of, *range(4))
    before, _ = written(fs)
    assert all(put(storage, pages, page_bytes=page_bytes, pieces=4))
    after, _ = written(fs)
    assert after - before <= 4 * 2 + 2
    assert get(storage, pages, page_bytes=page_bytes, pieces=2) == [True] * 4
    storage.close()


def test_spent_chunks_of_a_store_that_was_taken_over_are_holes(fs: ThreeFs) -> None:
    of = namespace(60 << 10)
    medium = ThreeFsMedium(fs, **RINGS)
    storage = medium.open(of, segment_bytes=8 << 20)
    pages = digests(of, *range(24))
    assert all(put(storage, pages, page_bytes=60 << 10))
    storage.close()
    again = medium.open(of, segment_bytes=8 << 20)
    full = held(medium)
    assert all(again.remove(pages[:20]))
    fs.wait_until(lambda _: held(medium) <= full - 20 * CHUNK)
    assert get(again, pages[20:], page_bytes=60 << 10) == [True] * 4
    again.close()


def held(medium: ThreeFsMedium) -> int:
    return sum(p.stat().st_blocks * 512 for p in medium.backing.glob("*/*/seg-*.data"))
