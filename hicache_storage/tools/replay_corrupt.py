"""Damage done on purpose: one bit of stored pages flipped in the segment files, past the store."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from hicache_backends.identity import page_digests
from hicache_backends.segment.format import ALIGNMENT, RECORD
from hicache_storage.tools.content import page_key
from hicache_storage.tools.replay_front import Front
from hicache_storage.tools.replay_plan import Sizes

_OFTEN = 3


def asked_again(chains: Sequence[Sequence[int]], start: int, sizes: Sizes) -> list[int]:
    """The blocks that requests from `start` on find in the store before it has evicted them, if it
    is an exact LRU; soonest first. Those found only once or twice come last: where
    processes run at once an asker may stop short of a page, because another one is just writing
    a page before it."""
    fronts = [Front(sizes.front) for _ in range(sizes.nodes)]
    store = Front(sizes.store)
    found: Counter[int] = Counter()
    written: set[int] = set()
    for number, chain in enumerate(chains):
        held, stored = fronts[number % sizes.nodes].prefix(chain), store.prefix(chain)
        if number >= start:
            found.update(block for block in chain[held:stored] if block not in written)
            written.update(chain[stored:])
        fronts[number % sizes.nodes].touch(chain)
        store.touch(chain)
    return sorted(found, key=lambda block: found[block] < _OFTEN)


def flip_bits(
    roots: Sequence[str], fingerprint: bytes, page_bytes: int, blocks: Sequence[int]
) -> int:
    """Flip one bit in the newest stored page of each block; how many were found and flipped.

    `fingerprint`: of the namespace that the pages were written under.
    """
    digests = page_digests(fingerprint, [page_key(block) for block in blocks])
    wanted = dict(zip(digests, blocks, strict=True))
    slot_bytes = -(-page_bytes // ALIGNMENT) * ALIGNMENT
    newest: dict[int, tuple[int, Path, int]] = {}
    for index in (found for root in {*roots} for found in Path(root).glob("*/*/seg-*.index")):
        records = np.fromfile(index, dtype=RECORD)
        for slot in np.flatnonzero(records["bytes"]).tolist():
            record = records[slot]
            block = wanted.get(record["digest"].tobytes())
            if block is not None:
                place = (int(record["generation"]), index.with_suffix(".data"), slot)
                newest[block] = max(newest.get(block, place), place)
    for block, (_, data, slot) in newest.items():
        _flip_bit(data, slot * slot_bytes + block % page_bytes, block % 8)
    return len(newest)


def _flip_bit(path: Path, offset: int, bit: int) -> None:
    fd = os.open(path, os.O_RDWR)
    try:
        byte = os.pread(fd, 1, offset)[0]
        os.pwrite(fd, bytes([byte ^ (1 << bit)]), offset)
        os.fsync(fd)
    finally:
        os.close(fd)
