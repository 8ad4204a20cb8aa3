"""Which prefix lengths can be restored when a page's parts lie in several pools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.bool_]
"""At p: whether a prefix of p pages can be restored; of p = 0 always."""


def whole_prefix(present: int, pages: int) -> Lengths:
    """Of a pool whose every page is needed, such as the indexer of sparse attention: of `pages`
    the first `present` are there."""
    return np.arange(pages + 1) <= present


def trailing_pages(present: Sequence[bool], window: int) -> Lengths:
    """Of a pool whose last `window` pages before the end are needed: sliding windows, states."""
    there = np.asarray(present, np.bool_)
    ends = np.arange(1, len(there) + 1)
    last_hole = np.maximum.accumulate(np.where(there, 0, ends))
    legal = np.ones(len(there) + 1, np.bool_)
    legal[1:] = ends - last_hole >= np.minimum(max(1, window), ends)
    return legal


def lengths(legal: Lengths) -> list[int]:
    """The lengths above 0 that are legal, ascending."""
    return [int(length) for length in np.flatnonzero(legal) if length]
