"""Which prefixes several pools allow, against what the words say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_storage.sglang.policies import all_pages, lengths, trailing_pages

PRESENT = st.lists(st.booleans(), max_size=40)


@given(PRESENT)
def test_every_page_of_the_prefix_must_be_there(present: list[bool]) -> None:
    said = [n for n in range(1, len(present) + 1) if all(present[:n])]
    assert lengths(all_pages(present)) == said


@given(PRESENT, st.integers(0, 50))
def test_the_last_pages_of_the_prefix_must_be_there(present: list[bool], window: int) -> None:
    needed = max(1, window)
    said = [n for n in range(1, len(present) + 1) if all(present[:n][-needed:])]
    assert lengths(trailing_pages(present, window)) == said


@given(PRESENT, PRESENT, st.integers(1, 5))
def test_pools_agree_on_the_lengths_that_each_allows(
    some: list[bool], more: list[bool], window: int
) -> None:
    pages = min(len(some), len(more))
    both = all_pages(some[:pages]) & trailing_pages(more[:pages], window)
    own = set(lengths(all_pages(some[:pages]))) & set(lengths(trailing_pages(more[:pages], window)))
    assert lengths(both) == sorted(own)
    assert both[0], "nothing can always be restored"
    assert lengths(np.ones(1, np.bool_)) == []
