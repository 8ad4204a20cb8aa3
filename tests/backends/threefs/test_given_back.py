"""Space of stores that were taken over goes back, whatever else does so at the same time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from hicache_backends.deadline import Deadline
from hicache_backends.segment.segment import Segment
from hicache_backends.testing.canaries import NAMESPACE, digests_of, get, put
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
