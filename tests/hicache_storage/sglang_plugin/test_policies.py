"""Which prefixes several pools allow, against what the words say."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hicache_storage.sglang.policies import lengths, trailing_pages, whole_prefix

PRESENT = st.lists(st.booleans(), max_size=40)


def first_hole(present: list[bool]) -> int:
    return [*present, False].index(False)


@given(PRESENT)
def test_every_page_of_the_prefix_must_be_there(present: list[bool]) -> None:
    said = [n for n in range(1, len(present) + 1) if all(present[:n])]
    assert lengths(whole_prefix(first_hole(present), len(present))) == said


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
    whole = whole_prefix(first_hole(some[:pages]), pages)
    trailing = trailing_pages(more[:pages], window)
    both = whole & trailing
    assert lengths(both) == sorted({*lengths(whole)} & {*lengths(trailing)})
    assert both[0], "nothing can always be restored"
    assert lengths(np.ones(1, np.bool_)) == []
