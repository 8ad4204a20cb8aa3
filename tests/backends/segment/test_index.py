"""An index rebuilt from records is the index that wrote them."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hicache_backends.segment.format import RECORD
from hicache_backends.segment.index import PageIndex
from hicache_backends.storage import ROOT, UNKNOWN

NAMES = [bytes([i]) * 16 for i in range(2, 60)]


def _records(rows: list[tuple[bytes, bytes, int]]) -> np.ndarray:
    records = np.zeros(len(rows), RECORD)
    for i, (digest, parent, generation) in enumerate(rows):
        records[i]["digest"], records[i]["parent"] = np.void(digest), np.void(parent)
        records[i]["generation"], records[i]["checksum"] = generation, generation * 7
    return records


def _loaded(rows: list[tuple[bytes, bytes, int]], slots: list[int]) -> tuple[PageIndex, list[int]]:
    index = PageIndex()
    index.extend(max(slots, default=0) + 3)
    used = index.load(np.array(slots, np.int32), _records(rows))
    return index, sorted(used.tolist())


def _content(index: PageIndex) -> dict[bytes, tuple[int, bytes, int, int, bool]]:
    return {
        digest: (
            slot,
            index.page(slot)[1],
            index.generation[slot],
            index.checksum[slot],
            index.has_children(slot),
        )
        for digest, slot in index.slots.items()
    }


@pytest.mark.parametrize("seed", range(60))
def test_a_rebuilt_index_equals_one_filled_page_by_page(seed: int) -> None:
    chance = random.Random(seed)  # noqa: S311 - not cryptography
    count = chance.randrange(40)
    names = [chance.choice(NAMES) for _ in range(count)] if seed % 2 else NAMES[:count]
    slots = chance.sample(range(3 * count + 1), count)
    generations = chance.sample(range(1, 1000), count)
    rows = [
        (name, chance.choice([ROOT, UNKNOWN, *NAMES, *names]), generation)
        for name, generation in zip(names, generations, strict=True)
    ]
    loaded, used = _loaded(rows, slots)

    filled = PageIndex()
    filled.extend(len(loaded.generation))
    for _, slot, row in sorted(zip(generations, slots, rows, strict=True)):
        if row[0] in filled.slots:
            filled.remove(filled.slots[row[0]])
        filled.add(slot, *row, row[2] * 7)
    parents = {digest: content[1] for digest, content in _content(filled).items()}
    for digest, (slot, parent, generation, checksum, _) in _content(loaded).items():
        assert (slot, generation, checksum) == (
            filled.slots[digest],
            filled.generation[slot],
            filled.checksum[slot],
        )
        assert parent in (parents[digest], UNKNOWN, *[r[1] for r in rows if r[0] == digest])
    assert {*loaded.slots} == {*filled.slots}
    assert used == sorted(loaded.slots.values())
    _assert_evictable(loaded)


def _assert_evictable(index: PageIndex) -> None:
    """There is no circle: all pages go, children before their parents."""
    count = len(index)
    victims = index.victims(count)
    assert len(victims) == count
    for slot in victims:
        assert not index.has_children(slot)
        index.remove(slot)
    assert not len(index)


def test_the_order_of_eviction_survives() -> None:
    rows = [(name, ROOT, 100 - i) for i, name in enumerate(NAMES[:20])]
    index, _ = _loaded(rows, list(range(20)))
    assert [index.page(slot)[0] for slot in index.victims(20)] == NAMES[:20][::-1]


def test_of_two_records_of_a_page_the_newer_counts() -> None:
    rows = [(NAMES[0], ROOT, 5), (NAMES[0], ROOT, 9), (NAMES[0], ROOT, 7)]
    index, used = _loaded(rows, [0, 1, 2])
    assert index.slots == {NAMES[0]: 1}
    assert used == [1]


def test_children_know_their_parents_whichever_was_written_first() -> None:
    a, b, c, d = NAMES[:4]
    rows = [(c, b, 1), (a, ROOT, 2), (b, a, 3), (d, NAMES[9], 4)]
    index, _ = _loaded(rows, [3, 2, 1, 0])
    assert [index.page(slot)[0] for slot in index.heads_first()][:3] == [a, b, c]
    assert [index.page(slot)[0] for slot in index.victims(4)] == [c, b, a, d]


def test_a_circle_on_the_medium_is_cut() -> None:
    a, b, c = NAMES[:3]
    index, _ = _loaded([(a, c, 1), (b, a, 2), (c, b, 3)], [0, 1, 2])
    _assert_evictable(index)
    index, _ = _loaded([(a, a, 1)], [0])
    _assert_evictable(index)


def test_a_pinned_page_is_no_victim_and_gives_its_slot_back_at_the_last_unpin() -> None:
    index, _ = _loaded([(NAMES[0], ROOT, 1), (NAMES[1], ROOT, 2)], [0, 1])
    index.pin([0])
    index.pin([0])
    assert index.victims(2) == [1]
    index.remove(0)
    assert index.unpin([0]) == []
    assert index.unpin([0]) == [0]
    assert not index.pinned
