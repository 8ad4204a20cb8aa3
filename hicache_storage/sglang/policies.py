"""Which prefix lengths can be restored when a page's parts lie in several pools."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Lengths = NDArray[np.bool_]
"""At p: whether a prefix of p pages can be restored; of p = 0 always."""


def all_pages(present: Sequence[bool]) -> Lengths:
    """Of a pool whose every page is needed, such as the indexer of sparse attention."""
    legal = np.ones(len(present) + 1, np.bool_)
    legal[1:] = np.logical_and.accumulate(np.asarray(present, np.bool_))
    return legal


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
