"""What lies side by side in a file: pages, or records, that one call can move."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def plan_runs(
    fds: NDArray[np.int32],
    offsets: NDArray[np.int64],
    which: NDArray[np.intp],
    item_bytes: int,
    max_bytes: int,
) -> list[list[int]]:
    """Indices grouped into neighbours of one file, in the order of the first index of each."""
    order = which[np.lexsort((offsets[which], fds[which]))].tolist()
    runs: list[list[int]] = []
    for i in order:
        last = runs[-1] if runs else None
        if (
            last
            and fds[last[-1]] == fds[i]
            and offsets[i] - offsets[last[-1]] == item_bytes
            and (len(last) + 1) * item_bytes <= max_bytes
        ):
            last.append(i)
        else:
            runs.append([i])
    return sorted(runs, key=min)
