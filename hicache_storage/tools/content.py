"""What a block's page holds: bytes that follow from the block's id, so that any other page shows.

A page is a fixed random pattern, each 64-bit word of it XORed with the mixed id. The mixing is a
bijection: pages of two ids differ in every word, and a page shifted within itself fits no id.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from hicache_backends.errors import ConfigError

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)

_STEP_BYTES = 1 << 20
"""Pages are compared by so many bytes at once, which stay in the processor's cache."""


class PageContent:
    """Makes and compares pages of `page_bytes` bytes, a multiple of 8."""

    def __init__(self, page_bytes: int) -> None:
        if page_bytes <= 0 or page_bytes % 8:
            raise ConfigError(f"page bytes are a positive multiple of 8, not {page_bytes}")
        self.page_bytes = page_bytes
        self._pattern = _mixed(np.arange(page_bytes // 8, dtype=np.uint64))
        self._step = max(1, _STEP_BYTES // page_bytes)
        self._expected = np.empty((self._step, page_bytes // 8), dtype=np.uint64)

    def fill(self, ids: Sequence[int], pages: NDArray[np.uint8]) -> None:
        """Write the page of each id into the rows of `pages`, shape (n, page_bytes)."""
        np.bitwise_xor(self._pattern, self._words(ids), out=pages.view(np.uint64))

    def wrong(self, ids: Sequence[int], pages: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """For each row of `pages`: is it anything else than the whole page of its id?"""
        words, rows = self._words(ids), pages.view(np.uint64)
        differs = np.zeros(len(ids), dtype=np.bool_)
        for start in range(0, len(ids), self._step):
            part = slice(start, start + self._step)
            expected = self._expected[: len(words[part])]
            np.bitwise_xor(self._pattern, words[part], out=expected)
            differs[part] = (rows[part] != expected).any(axis=1)
        return differs

    @staticmethod
    def _words(ids: Sequence[int]) -> NDArray[np.uint64]:
        return _mixed(np.array(ids, dtype=np.uint64) + np.uint64(1 << 63))[:, None]


def page_key(block: int) -> str:
    """The 64 hexadecimal digits that stand for a block, as a page hash would."""
    return hashlib.sha256(b"block %d" % block).hexdigest()


def page_memory(pages: int, page_bytes: int) -> NDArray[np.uint8]:
    """Zeroed memory of shape (pages, page_bytes), aligned as O_DIRECT needs."""
    memory = mmap.mmap(-1, max(1, pages * page_bytes))
    rows = np.frombuffer(memory, dtype=np.uint8, count=pages * page_bytes)
    return rows.reshape(pages, page_bytes)


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64: a bijection whose every output bit hangs on every input bit."""
    mixed = words * _GAMMA + _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _MIX_1
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _MIX_2
    return mixed ^ (mixed >> np.uint64(31))
