"""The layout of a ring, as the C compiler has it beside the figures of the real header."""

from __future__ import annotations

import json
import subprocess

from tests.threefs.stand_in import program

MARKS = [0, 4, 8, 12]  # sqe head, sqe tail, cqe head, cqe tail
RINGS = {  # entries: bytes, marks, args, cqes, sqes, semaphore
    "1": [4336, *MARKS, 16, 128, 176, 208],
    "8": [5008, *MARKS, 16, 520, 736, 880],
    "1024": [102_544, *MARKS, 16, 57_416, 82_016, 98_416],
}
ARGS = [56, 0, 16, 24, 32, 40, 48]  # bytes; id, offset, inode, offset, length, userdata
CQE = [24, 0, 8, 16]  # bytes; index, result, userdata
SQE = [16, 0, 8]  # bytes; index, userdata


def test_the_layout_is_that_of_3fs() -> None:
    printed = subprocess.run([program(), "--layout"], check=True, capture_output=True).stdout
    assert json.loads(printed) == {"args": ARGS, "cqe": CQE, "sqe": SQE, "rings": RINGS}


def test_the_figures_follow_the_formula() -> None:
    for entries, (size, *_, args, cqes, sqes, semaphore) in RINGS.items():
        cells = int(entries) + 1
        assert size == 48 + 96 * cells + 4096
        assert (args, cqes, sqes) == (16, 16 + 56 * cells, 16 + 80 * cells)
        assert semaphore == 16 + 96 * cells
