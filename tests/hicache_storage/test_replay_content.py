from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hicache_backends.errors import ConfigError
from hicache_storage.tools.content import PageContent, page_key, page_memory
from hicache_storage.tools.traces import MAX_BLOCK_ID

IDS = st.integers(0, MAX_BLOCK_ID)
CONTENT = PageContent(4096)


def page_of(block: int) -> np.ndarray:
    memory = page_memory(1, 4096)
    CONTENT.fill([block], memory)
    return memory


@given(IDS, IDS)
def test_pages_of_two_blocks_differ_in_every_word(one: int, other: int) -> None:
    a, b = page_of(one).view(np.uint64), page_of(other).view(np.uint64)
    assert (a == b).all() if one == other else (a != b).all()


@given(IDS, st.integers(0, 4095), st.integers(0, 7))
def test_one_flipped_bit_makes_a_page_wrong(block: int, byte: int, bit: int) -> None:
    page = page_of(block)
    assert not CONTENT.wrong([block], page).any()
    page[0, byte] ^= np.uint8(1 << bit)
    assert CONTENT.wrong([block], page).all()


@given(IDS, st.integers(1, 511))
def test_a_page_shifted_within_itself_is_wrong(block: int, words: int) -> None:
    shifted = np.roll(page_of(block), words * 8, axis=1)
    assert CONTENT.wrong([block], shifted).all()


def test_every_byte_of_a_page_hangs_on_the_block() -> None:
    blocks = list(range(200))
    memory = page_memory(len(blocks), 4096)
    CONTENT.fill(blocks, memory)
    different_values = np.array([len(np.unique(column)) for column in memory.T])
    assert different_values.min() > 50


def test_each_page_of_a_batch_is_judged_by_itself() -> None:
    memory = page_memory(3, 4096)
    CONTENT.fill([7, 8, 9], memory)
    assert CONTENT.wrong([7, 9, 9], memory).tolist() == [False, True, False]


def test_keys_are_distinct_and_look_like_page_hashes() -> None:
    keys = {page_key(block) for block in range(1000)}
    assert len(keys) == 1000
    assert all(len(key) == 64 and int(key, 16) >= 0 for key in keys)


@pytest.mark.parametrize("page_bytes", [0, -8, 12])
def test_a_page_size_that_is_no_multiple_of_eight_is_refused(page_bytes: int) -> None:
    with pytest.raises(ConfigError, match="multiple of 8"):
        PageContent(page_bytes)
