"""Space of stores that were taken over goes back, whatever else does so at the same time."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.errors import StorageError
from hicache_backends.segment.segment import Segment
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
from hicache_backends.threefs.backend import ThreeFsStorage
from tests.backends.threefs.medium import ThreeFsMedium
from tests.threefs.stand_in import ThreeFs


def test_two_calls_that_empty_a_segment_together_delete_it_once(
    fs: ThreeFs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One call is giving space back when another takes the last page of the same segment."""
    medium = ThreeFsMedium(fs)
    first = medium.open(NAMESPACE, capacity_pages=16)
    pages = digests_of(*range(16))
    assert all(put(first, pages))
    assert first.close()
    storage = medium.open(NAMESPACE, capacity_pages=16)
    stored = medium.pages(NAMESPACE)
    one, other = ([p for p in pages if int(stored[p].data.stem[4:]) == n] for n in (1, 2))
    filing = storage._state.filing
    spend, spent = filing.spend, list[int]()

    def spend_and_be_overtaken(segment: Segment, slots: Sequence[int], deadline: Deadline) -> None:
        spent.append(segment.number)
        if len(spent) == 1:
            rest = [other, one][segment.number - 1]
            assert all(storage.remove(rest[1:]))
        spend(segment, slots, deadline)

    monkeypatch.setattr(filing, "spend", spend_and_be_overtaken)
    assert all(storage.remove([one[0], other[0]]))
    assert storage.stats()["segments"] == 1
    assert sum(get(storage, pages)) == 7
    assert storage.close()


def test_a_connection_that_was_closed_meanwhile_leaves_no_call_open(fs: ThreeFs) -> None:
    """The page of a call in flight leaves; its slot is given back as the call ends."""
    medium = ThreeFsMedium(fs, io_engine="usrbio", ring_client="own")
    first = medium.open(NAMESPACE, capacity_pages=8)
    pages = digests_of(*range(8))
    assert all(put(first, pages))
    assert first.close()
    storage = medium.open(NAMESPACE, capacity_pages=8)
    fs.set(hang_share=1, only=1)
    reader = threading.Thread(target=lambda: get_quietly(storage, pages[:1]))
    reader.start()
    fs.wait_until(lambda counters: counters["held"] == 1)
    assert all(storage.remove(pages[:1]))
    assert not storage.close(100), "a call is in flight"
    reader.join()
    assert storage.close()


def get_quietly(storage: ThreeFsStorage, pages: list[bytes]) -> None:
    with suppress(StorageError):
        get(storage, pages)


def test_a_segment_with_nothing_but_copies_is_deleted_as_its_store_is_taken_over(
    fs: ThreeFs,
) -> None:
    medium = ThreeFsMedium(fs)
    stores = [medium.open(NAMESPACE, capacity_pages=16) for _ in range(2)]
    pages = digests_of(*range(8))
    for store in stores:
        assert all(put(store, pages))
    for store in stores:
        assert store.close()
    assert len([*medium.backing.glob("*/*/seg-*.data")]) == 2
    storage = medium.open(NAMESPACE, capacity_pages=16)
    assert len([*medium.backing.glob("*/*/seg-*.data")]) == 1
    assert storage.stats()["segments"] == 1
    assert get(storage, pages) == [True] * 8
    assert storage.close()


def test_a_segment_of_an_adopted_store_that_was_deleted_from_outside_counts_no_more(
    fs: ThreeFs,
) -> None:
    medium = ThreeFsMedium(fs)
    first = medium.open(NAMESPACE, capacity_pages=16)
    pages = digests_of(*range(16))
    assert all(put(first, pages))
    assert first.close()
    storage = medium.open(NAMESPACE, capacity_pages=16)
    state = storage._state
    assert state.volumes[0].store.adopted_pages == 16
    for segment in [*state.table]:
        Path(segment.index_path).unlink()
    storage.recheck(pages, Deadline.after_ms(5000))
    assert not any(storage.contains(pages))
    assert not state.has_sealed
    assert state.volumes[0].store.adopted_pages == 0
    assert storage.close()
